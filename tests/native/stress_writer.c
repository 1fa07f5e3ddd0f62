/* The life of a writer: it takes back what the one before it left, works, dies, is started again. */
#include "stress.h"

bool live_on(struct writer *writer) {
  if (writer->is_draining) return true;
  switch (world_below(&writer->random, 64)) {
    case 0: nap(50); break;
    case 1: nap(world_below(&writer->random, 16) == 0 ? 5000 : 300); break;
    case 2: sched_yield(); break;
    case 3: return world_below(&writer->random, 4) != 0;
    default: break;
  }
  return true;
}

/* What a new writer does first: half-written things of the one before it count as not begun. */
static void take_back(struct stress *stress) {
  struct pe_ring_control *control = control_of(stress);
  for (uint64_t slot = 0; slot < control->slot_count; slot++) {
    _Atomic uint64_t *word = pe_control_word(control, slot);
    const uint64_t seen = atomic_load_explicit(word, memory_order_acquire);
    if (pe_word_state(seen) == PE_SLOT_PERSISTING || pe_word_state(seen) == PE_SLOT_WRITTEN)
      pe_word_move(word, seen, pe_word(pe_word_tag(seen), PE_SLOT_SEALED));
  }
  for (size_t i = 0; i < ENTRIES; i++) {
    _Atomic uint64_t *word = &stress->entries[i].staging;
    const uint64_t seen = atomic_load_explicit(word, memory_order_acquire);
    if (pe_word_state(seen) == WRITING)
      pe_word_move(word, seen, pe_word(pe_word_tag(seen), STAGED));
  }
}

static bool write_until_stopped(struct writer *writer) {
  struct stress *stress = writer->stress;
  while (!atomic_load(&stress->drain)) {
    if (persist_all(writer) == DIED || take_up(writer) == DIED) return DIED;
    sweep(stress);
    if (world_below(&writer->random, 8) == 0) nap(200);
  }
  writer->is_draining = true;
  for (int pass = 0; pass < 4; pass++)
    if (persist_all(writer) == DIED || take_up(writer) == DIED) return DIED;
  return true;
}

static void *writer_thread(void *context) {
  struct stress *stress = context;
  struct writer writer = {stress, stress->seed * 31 + stress->deaths + 1, NULL, false};
  const struct pe_segment_header *plan = (const void *)stress->world.header_image;
  writer.scratch = malloc(plan->file_bytes);
  take_back(stress);
  const bool is_done = write_until_stopped(&writer);
  free(writer.scratch);
  return is_done ? context : NULL;
}

/* Starts a writer after each that died: what the trainer's link does. */
void *supervisor_thread(void *context) {
  struct stress *stress = context;
  for (;;) {
    pthread_t thread;
    void *done;
    CHECK(pthread_create(&thread, NULL, writer_thread, stress) == 0, "a thread");
    pthread_join(thread, &done);
    if (done != NULL) return NULL;
    stress->deaths++;
  }
}
