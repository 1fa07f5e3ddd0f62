/* The writer: staged snapshots are found, copied, checked and committed. */
#include "stress.h"

struct piece {
  uint64_t lane, segment, first, end;
  uint64_t slot;     /* of an OPEN segment */
  uint64_t sequence; /* of a file, else 0 */
  uint8_t *copy;
};

#define MAX_PIECES 24u

struct job {
  struct entry *entry;
  uint64_t sequence;
  struct piece pieces[MAX_PIECES];
  size_t count;
};

enum fate { WAITING, READY, CANCELLED, FAILED };

static void check_staged(const struct entry *entry, uint64_t sequence) {
  for (size_t i = 0; i < STAGING_BYTES / 8; i++)
    CHECK(entry->bytes[i] == sequence * 1000 + i, "staging slot of snapshot %lu was refilled",
          (unsigned long)sequence);
  for (uint64_t lane = 0; lane < LANES; lane++)
    for (uint64_t row = entry->tails[lane]; row < entry->totals[lane]; row++)
      CHECK(entry->mutables[lane * ROWS + row % ROWS] >> 16 == row * LANES + lane,
            "mutable field of row %lu in snapshot %lu", (unsigned long)row,
            (unsigned long)sequence);
}

static bool is_pending(struct job *job) {
  return atomic_load_explicit(&job->entry->snapshot, memory_order_acquire) ==
         pe_word(job->sequence, PE_SNAPSHOT_PENDING);
}

/* Find where a piece can be had; persists what is only sealed. */
static bool resolve(struct writer *writer, struct job *job, struct piece *piece, enum fate *fate) {
  struct stress *stress = writer->stress;
  struct pe_ring_control *control = control_of(stress);
  const uint64_t key = piece->segment * LANES + piece->lane;
  struct pe_file record;
  unsigned failures = 0;
  for (;;) {
    STEP(writer);
    if (!is_pending(job)) {
      *fate = CANCELLED;
      return true;
    }
    const uint64_t place = pe_control_find(control, piece->lane, piece->segment, &record);
    if (place == PE_PLACE_NONE) {
      CHECK(!is_pending(job), "segment %lu went while snapshot %lu held it", (unsigned long)key,
            (unsigned long)job->sequence);
      continue;
    }
    if (place != PE_PLACE_FILE) {
      const uint64_t slot = place - 1;
      const uint64_t word =
          atomic_load_explicit(pe_control_word(control, slot), memory_order_acquire);
      if (pe_word_tag(word) != key) continue;
      if (pe_word_state(word) == PE_SLOT_OPEN) {
        piece->slot = slot;
        *fate = READY;
        return true;
      }
      if (pe_word_state(word) == PE_SLOT_SEALED) {
        bool is_there;
        if (persist(writer, slot, key, &is_there) == DIED) return DIED;
        if (!is_there && ++failures == 3) {
          *fate = FAILED;
          return true;
        }
        continue;
      }
      if (pe_word_state(word) != PE_SLOT_PERSISTED) continue;
      record = *pe_control_slot_file(control, slot);
      if (atomic_load_explicit(pe_control_word(control, slot), memory_order_acquire) != word)
        continue;
    }
    const struct file *file = find_file(stress, record.sequence);
    CHECK(file != NULL && file->lane == piece->lane && file->segment == piece->segment,
          "the record of segment %lu names another file", (unsigned long)key);
    piece->sequence = record.sequence;
    *fate = READY;
    return true;
  }
}

static void copy_part(struct stress *stress, struct job *job) {
  struct pe_ring_control *control = control_of(stress);
  for (size_t i = 0; i < job->count; i++) {
    struct piece *piece = &job->pieces[i];
    if (piece->sequence != 0) continue;
    piece->copy = malloc(control->slot_bytes);
    memcpy(piece->copy, stress->world.spec + pe_control_slot_offset(control, piece->slot),
           control->slot_bytes);
  }
}

static void free_copies(struct job *job) {
  for (size_t i = 0; i < job->count; i++) free(job->pieces[i].copy);
}

/* COMMITTING is won: nothing that the snapshot cut may be missing or other than it was. */
static void check_snapshot(struct stress *stress, struct job *job) {
  struct pe_ring_control *control = control_of(stress);
  uint64_t rows = 0;
  check_staged(job->entry, job->sequence);
  for (size_t i = 0; i < job->count; i++) {
    const struct piece *piece = &job->pieces[i];
    const uint8_t *image = piece->copy;
    if (piece->sequence != 0) {
      const struct file *file = find_file(stress, piece->sequence);
      CHECK(file != NULL, "a linked file was removed");
      image = file->image;
    } else {
      /* Seen by ThreadSanitizer: the count that the cut noted published these rows. */
      world_check_image(&stress->world,
                        stress->world.base + pe_control_slot_offset(control, piece->slot),
                        piece->lane, piece->first, piece->end, "open segment");
    }
    world_check_image(&stress->world, image, piece->lane, piece->first, piece->end, "snapshot");
    rows += piece->end - piece->first;
  }
  for (uint64_t lane = 0; lane < LANES; lane++)
    rows -= job->entry->totals[lane] - job->entry->tails[lane];
  CHECK(rows == 0, "snapshot %lu does not cover its cut", (unsigned long)job->sequence);
}

static bool has_manifest(const struct stress *stress, uint64_t sequence) {
  return stress->manifests[sequence % MANIFESTS] == sequence;
}

static void settle(struct stress *stress, struct job *job) {
  const uint64_t sequence = job->sequence;
  CHECK(pe_word_move(&job->entry->snapshot, pe_word(sequence, PE_SNAPSHOT_COMMITTING),
                     pe_word(sequence, PE_SNAPSHOT_COMMITTED)),
        "somebody else decided snapshot %lu", (unsigned long)sequence);
  stress->committed++;
}

static bool commit(struct writer *writer, struct job *job) {
  struct stress *stress = writer->stress;
  const uint64_t sequence = job->sequence;
  copy_part(stress, job);
  STEP(writer);
  if (!pe_word_move(&job->entry->snapshot, pe_word(sequence, PE_SNAPSHOT_PENDING),
                    pe_word(sequence, PE_SNAPSHOT_COMMITTING)))
    return true;
  check_snapshot(stress, job);
  STEP(writer);
  stress->manifests[sequence % MANIFESTS] = sequence;
  STEP(writer);
  settle(stress, job);
  return true;
}

static bool write_snapshot(struct writer *writer, struct job *job) {
  struct stress *stress = writer->stress;
  struct entry *entry = job->entry;
  const uint64_t sequence = job->sequence;
  check_staged(entry, sequence);
  if (state_of(&entry->snapshot) == PE_SNAPSHOT_COMMITTING) { /* of a writer that died */
    if (has_manifest(stress, sequence)) {
      settle(stress, job);
      return true;
    }
    CHECK(pe_word_move(&entry->snapshot, pe_word(sequence, PE_SNAPSHOT_COMMITTING),
                       pe_word(sequence, PE_SNAPSHOT_PENDING)),
          "rolling snapshot %lu back", (unsigned long)sequence);
  }
  for (uint64_t lane = 0; lane < LANES; lane++)
    for (uint64_t row = entry->tails[lane]; row < entry->totals[lane];) {
      const uint64_t segment = row / WORLD_SEGMENT_ROWS;
      uint64_t end = (segment + 1) * WORLD_SEGMENT_ROWS;
      if (end > entry->totals[lane]) end = entry->totals[lane];
      CHECK(job->count < MAX_PIECES, "too many pieces");
      job->pieces[job->count++] = (struct piece){lane, segment, row, end, 0, 0, NULL};
      row = end;
    }
  for (size_t i = 0; i < job->count; i++) {
    enum fate fate = WAITING;
    if (resolve(writer, job, &job->pieces[i], &fate) == DIED) return DIED;
    if (fate == CANCELLED) return true;
    if (fate == FAILED) {
      stress->failed += pe_word_move(&entry->snapshot, pe_word(sequence, PE_SNAPSHOT_PENDING),
                                     pe_word(sequence, PE_SNAPSHOT_FAILED));
      return true;
    }
  }
  check_staged(entry, sequence);
  const bool is_alive = commit(writer, job);
  free_copies(job);
  return is_alive;
}

bool take_up(struct writer *writer) {
  struct stress *stress = writer->stress;
  struct entry *oldest = NULL;
  uint64_t sequence = 0;
  for (size_t i = 0; i < ENTRIES; i++) {
    const uint64_t word =
        atomic_load_explicit(&stress->entries[i].staging, memory_order_acquire);
    if (pe_word_state(word) == STAGED && (oldest == NULL || pe_word_tag(word) < sequence)) {
      oldest = &stress->entries[i];
      sequence = pe_word_tag(word);
    }
  }
  if (oldest == NULL) return true;
  STEP(writer);
  const uint64_t fate = state_of(&oldest->snapshot);
  if (fate != PE_SNAPSHOT_PENDING && fate != PE_SNAPSHOT_COMMITTING) {
    pe_word_move(&oldest->staging, pe_word(sequence, STAGED), pe_word(sequence, FREE));
    return true;
  }
  CHECK(pe_word_move(&oldest->staging, pe_word(sequence, STAGED), pe_word(sequence, WRITING)),
        "a staged slot is the writer's");
  struct job job = {oldest, sequence, {{0, 0, 0, 0, 0, 0, NULL}}, 0};
  if (write_snapshot(writer, &job) == DIED) return DIED;
  STEP(writer);
  CHECK(pe_word_move(&oldest->staging, pe_word(sequence, WRITING), pe_word(sequence, FREE)),
        "a slot that is WRITING is the writer's");
  return true;
}
