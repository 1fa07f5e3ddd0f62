/* The writer: segments become files of the pool. */
#include "hash.h"
#include "stress.h"

struct file *find_file(struct stress *stress, uint64_t sequence) {
  for (size_t i = 0; i < POOL; i++)
    if (stress->pool[i].sequence == sequence) return &stress->pool[i];
  return NULL;
}

static void unlink_file(struct file *file) {
  free(file->image);
  *file = (struct file){0, 0, 0, NULL};
}

static void check_file(struct stress *stress, const uint8_t *image, uint64_t key) {
  const struct pe_segment_header *header = (const void *)image;
  const struct pe_run_record *run = pe_segment_runs((struct pe_segment_header *)(uintptr_t)image);
  const uint64_t lane = key % LANES;
  const uint64_t first = key / LANES * WORLD_SEGMENT_ROWS;
  CHECK(run->lane == lane && run->first_row == first && header->row_count == WORLD_SEGMENT_ROWS,
        "the header of segment %lu is another's", (unsigned long)key);
  CHECK(pe_image_verify(image) == -1, "the hashes of segment %lu", (unsigned long)key);
  world_check_image(&stress->world, image, lane, first, first + WORLD_SEGMENT_ROWS, "pool file");
}

bool persist(struct writer *writer, uint64_t slot, uint64_t key, bool *is_there) {
  struct stress *stress = writer->stress;
  struct pe_ring_control *control = control_of(stress);
  _Atomic uint64_t *word = pe_control_word(control, slot);
  uint8_t *spec = stress->world.spec + pe_control_slot_offset(control, slot);
  struct pe_segment_header *header = (void *)spec;
  *is_there = false;
  if (!pe_word_move(word, pe_word(key, PE_SLOT_SEALED), pe_word(key, PE_SLOT_PERSISTING)))
    return true;
  STEP(writer);
  const uint64_t sequence =
      atomic_fetch_add_explicit(&control->next_file_sequence, 1, memory_order_acq_rel) + 1;
  header->row_count = WORLD_SEGMENT_ROWS;
  pe_segment_runs(header)->row_count = WORLD_SEGMENT_ROWS;
  STEP(writer);
  const uint64_t checksum = pe_image_seal(spec, writer->scratch);
  STEP(writer);
  uint8_t *image = aligned_alloc(PE_PAGE_BYTES, header->file_bytes); /* as a mapped file is */
  memcpy(image, spec, ((const struct pe_segment_header *)(const void *)stress->world.header_image)
                          ->file_bytes);
  if (!writer->is_draining && world_below(&writer->random, 24) == 0) { /* the disk says no */
    free(image);
    pe_word_move(word, pe_word(key, PE_SLOT_PERSISTING), pe_word(key, PE_SLOT_SEALED));
    return true;
  }
  if (!live_on(writer)) {
    free(image);
    return DIED;
  }
  if (!pe_word_move(word, pe_word(key, PE_SLOT_PERSISTING), pe_word(key, PE_SLOT_WRITTEN))) {
    free(image);
    stress->lost++;
    return true;
  }
  check_file(stress, image, key); /* a won swap proves that nobody touched the slot meanwhile */
  struct file *file = find_file(stress, 0);
  CHECK(file != NULL, "the pool is full");
  *file = (struct file){sequence, key % LANES, key / LANES, image};
  STEP(writer);
  const uint64_t rows = WORLD_SEGMENT_ROWS;
  *pe_control_slot_file(control, slot) = (struct pe_file){
      1, key % LANES, key / LANES * rows, rows, sequence, checksum, header->file_bytes};
  stress->images[slot] = image;
  STEP(writer);
  if (!pe_word_move(word, pe_word(key, PE_SLOT_WRITTEN), pe_word(key, PE_SLOT_PERSISTED))) {
    unlink_file(file);
    stress->lost++;
    return true;
  }
  stress->persisted++;
  *is_there = true;
  return true;
}

bool persist_all(struct writer *writer) {
  struct pe_ring_control *control = control_of(writer->stress);
  for (uint64_t slot = 0; slot < control->slot_count; slot++) {
    const uint64_t word =
        atomic_load_explicit(pe_control_word(control, slot), memory_order_acquire);
    bool is_there;
    if (pe_word_state(word) == PE_SLOT_SEALED &&
        persist(writer, slot, pe_word_tag(word), &is_there) == DIED)
      return DIED;
  }
  return true;
}

void sweep(struct stress *stress) {
  /* The counts first: a snapshot that is not seen was cut later than they say. */
  uint64_t tails[LANES];
  for (uint64_t lane = 0; lane < LANES; lane++)
    tails[lane] = pe_lane_tail(&stress->world.ring, lane);
  for (size_t i = 0; i < ENTRIES; i++)
    if (state_of(&stress->entries[i].staging) != FREE) return;
  for (size_t i = 0; i < POOL; i++) {
    struct file *file = &stress->pool[i];
    const uint64_t end = (file->segment + 1) * WORLD_SEGMENT_ROWS;
    if (file->sequence != 0 && end <= tails[file->lane]) unlink_file(file);
  }
}
