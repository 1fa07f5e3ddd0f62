/*
 * The shared-memory protocol under threads: a learner that appends, cuts and cancels, readers,
 * an updater, one that reserves slots, and a writer that is slow, fails, dies between any two steps
 * and is started again. Built with ThreadSanitizer, and with AddressSanitizer and UBSan.
 *
 *     stress SECONDS SEED
 *
 * Checked: a gathered row is whole and in its window; a PERSISTED segment's file has exactly what
 * was appended; a committed snapshot has every row that it cut; a held segment is never reused; a
 * staging slot does not change while it is WRITING; at the end no published row is missing.
 */
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "hash.h"
#include "world.h"

#define LANES 2u
#define ROWS 32u
#define SLOTS 22u
#define ENTRIES 2u
#define STAGING_BYTES 2048u
#define POOL 4096u
#define MANIFESTS 4096u

enum staging { FREE, STAGING, STAGED, WRITING };

/* One staging slot and its snapshot, as in the engine's control block. */
struct entry {
  _Atomic uint64_t staging;
  _Atomic uint64_t snapshot;
  uint64_t tails[LANES];
  uint64_t totals[LANES];
  uint64_t bytes[STAGING_BYTES / 8];
  uint64_t mutables[LANES * ROWS];
};

/* A file of the pool: the writer's alone, and its successor's. */
struct file {
  uint64_t sequence; /* 0: none */
  uint64_t lane;
  uint64_t segment;
  uint8_t *image;
};

struct stress {
  struct world world;
  struct entry entries[ENTRIES];
  struct file pool[POOL];
  uint64_t manifests[MANIFESTS]; /* sequences of committed snapshots: what a disk would show */
  atomic_bool stop;
  atomic_bool drain;
  uint64_t seed;
  uint64_t deaths, committed, cancelled, failed, persisted, lost, gathered, waits;
};

struct writer {
  struct stress *stress;
  uint64_t random;
  uint8_t *scratch;
  bool is_draining;
};

#define DIED false
#define STEP(writer) \
  do {               \
    if (!live_on(writer)) return DIED; \
  } while (0)

static struct pe_ring_control *control_of(struct stress *stress) {
  return stress->world.ring.control;
}

static uint64_t state_of(_Atomic uint64_t *word) {
  return pe_word_state(atomic_load_explicit(word, memory_order_acquire));
}

static void nap(unsigned microseconds) {
  const struct timespec time = {0, (long)microseconds * 1000};
  nanosleep(&time, NULL);
}

/* Between two steps of a writer: it may be slow, frozen for a while, or die. */
static bool live_on(struct writer *writer) {
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

/* ---- the writer: segments ---- */

static struct file *find_sequence(struct stress *stress, uint64_t sequence) {
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

static bool persist(struct writer *writer, uint64_t slot, uint64_t key, bool *is_there) {
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
  uint8_t *image = malloc(header->file_bytes);
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
  struct file *file = find_sequence(stress, 0);
  CHECK(file != NULL, "the pool is full");
  *file = (struct file){sequence, key % LANES, key / LANES, image};
  STEP(writer);
  const uint64_t rows = WORLD_SEGMENT_ROWS;
  *pe_control_slot_file(control, slot) = (struct pe_file){
      1, key % LANES, key / LANES * rows, rows, sequence, checksum, header->file_bytes};
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

static bool persist_all(struct writer *writer) {
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

/* Files whose rows left the window and that no snapshot under way can need. The counts first: a
 * snapshot that is not seen was cut later than they say. */
static void sweep(struct stress *stress) {
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

/* ---- the writer: snapshots ---- */

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
    const struct file *file = find_sequence(stress, record.sequence);
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
      const struct file *file = find_sequence(stress, piece->sequence);
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

/* Take the oldest staged snapshot up, if there is one. */
static bool take_up(struct writer *writer) {
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
static void *supervisor_thread(void *context) {
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

/* ---- the trainer ---- */

static bool cancel(struct stress *stress, struct entry *entry) {
  const uint64_t seen = atomic_load_explicit(&entry->snapshot, memory_order_acquire);
  if (pe_word_state(seen) != PE_SNAPSHOT_PENDING ||
      !pe_word_move(&entry->snapshot, seen, pe_word(pe_word_tag(seen), PE_SNAPSHOT_CANCELLED)))
    return false;
  stress->cancelled++;
  return true;
}

static void cut(struct stress *stress, uint64_t sequence, uint64_t *random) {
  struct pe_ring *ring = &stress->world.ring;
  for (size_t i = 0; i < ENTRIES; i++) {
    struct entry *entry = &stress->entries[i];
    const uint64_t seen = atomic_load_explicit(&entry->staging, memory_order_acquire);
    if (pe_word_state(seen) != FREE ||
        !pe_word_move(&entry->staging, seen, pe_word(sequence, STAGING)))
      continue;
    for (size_t j = 0; j < STAGING_BYTES / 8; j++) entry->bytes[j] = sequence * 1000 + j;
    CHECK(pe_ring_lock(ring) == PE_OK, "the lock");
    atomic_store_explicit(&entry->snapshot, pe_word(sequence, PE_SNAPSHOT_PENDING),
                          memory_order_release);
    memcpy(entry->mutables, ring->base + stress->world.mutable_field.offset,
           sizeof entry->mutables);
    for (uint64_t lane = 0; lane < LANES; lane++) {
      entry->tails[lane] = pe_lane_tail(ring, lane);
      entry->totals[lane] = pe_lane_total(ring, lane);
    }
    CHECK(pe_ring_hold(ring, &entry->snapshot, sequence), "a place for a hold");
    const bool is_given_up = world_below(random, 8) == 0; /* something raised in the cut */
    if (is_given_up) cancel(stress, entry);
    CHECK(pe_word_move(&entry->staging, pe_word(sequence, STAGING),
                       pe_word(sequence, is_given_up ? FREE : STAGED)),
          "a slot that is STAGING is the trainer's");
    pe_ring_unlock(ring);
    return;
  }
}

/* Append rows, as the lock is held: one step with a mask, or several of one lane or of all. */
static enum pe_status append(struct stress *stress, uint64_t *random) {
  struct pe_ring *ring = &stress->world.ring;
  struct row rows[3 * LANES];
  uint64_t priorities[3 * LANES];
  uint8_t mask[LANES];
  const bool masked = world_below(random, 3) == 0;
  const uint64_t begin = masked ? 0 : world_below(random, LANES);
  const uint64_t lanes = masked ? LANES : LANES - begin;
  const uint64_t steps = masked ? 1 : 1 + world_below(random, 3);
  for (uint64_t lane = 0; lane < lanes; lane++) {
    mask[lane] = world_below(random, 2) != 0;
    for (uint64_t step = 0; step < steps; step++) {
      const uint64_t ref = (pe_lane_total(ring, begin + lane) + step) * LANES + begin + lane;
      world_fill_row(&rows[step * lanes + lane], ref);
      priorities[step * lanes + lane] = ref << 16;
    }
  }
  const uint64_t step_bytes = lanes * sizeof(struct row);
  const struct pe_source sources[] = {
      {(const uint8_t *)&rows[0].ref, step_bytes, sizeof(struct row)},
      {rows[0].body, step_bytes, sizeof(struct row)},
  };
  const struct pe_source mutables = {(const uint8_t *)priorities, lanes * 8, 8};
  uint64_t done = 0;
  struct pe_fault fault;
  return pe_ring_append(ring, begin, lanes, steps, sources, &mutables, masked ? mask : NULL, &done,
                        &fault);
}

static void *learner_thread(void *context) {
  struct stress *stress = context;
  struct pe_ring *ring = &stress->world.ring;
  uint64_t random = stress->seed * 7 + 3;
  uint64_t sequence = 1;
  unsigned waits = 0;
  while (!atomic_load(&stress->stop)) {
    CHECK(pe_ring_lock(ring) == PE_OK, "the lock");
    const enum pe_status status = append(stress, &random);
    if (world_below(&random, 32) == 0) pe_ring_break(ring, 0, LANES);
    pe_ring_unlock(ring);
    CHECK(status == PE_OK || status == PE_NO_SLOT, "append: status %d", (int)status);
    if (status == PE_NO_SLOT) {
      stress->waits++;
      nap(100);
      if (++waits > 40) /* the bound: give up what holds the slots */
        for (size_t i = 0; i < ENTRIES; i++) cancel(stress, &stress->entries[i]);
      CHECK(waits < 200000, "the trainer waits for ever");
      continue;
    }
    waits = 0;
    if (world_below(&random, 24) == 0) cut(stress, sequence++, &random);
    if (world_below(&random, 512) == 0) cancel(stress, &stress->entries[sequence % ENTRIES]);
    if (world_below(&random, 8) == 0) nap(60);
  }
  return NULL;
}

static void *reader_thread(void *context) {
  struct stress *stress = context;
  struct pe_ring *ring = &stress->world.ring;
  int64_t refs[16];
  uint64_t ids[16], priorities[16];
  uint8_t bodies[16 * WORLD_BODY_BYTES], starts[16];
  uint8_t *outputs[] = {(uint8_t *)ids, bodies, starts};
  uint8_t *mutable_outputs[] = {(uint8_t *)priorities};
  struct pe_fault fault;
  while (!atomic_load(&stress->stop)) {
    CHECK(pe_ring_lock_shared(ring) == PE_OK, "the lock");
    pthread_mutex_lock(&ring->draw);
    enum pe_status status = pe_ring_draw(ring, 16, refs);
    if (status == PE_OK) stress->gathered += 16;
    pthread_mutex_unlock(&ring->draw);
    if (status == PE_OK)
      status = pe_ring_gather(ring, refs, 16, outputs, mutable_outputs, &fault);
    pe_ring_unlock(ring);
    if (status == PE_EMPTY) continue;
    CHECK(status == PE_OK, "gather: status %d", (int)status);
    for (size_t i = 0; i < 16; i++) {
      const uint64_t ref = (uint64_t)refs[i];
      CHECK(ids[i] == ref && priorities[i] >> 16 == ref && starts[i] <= 1, "row %lu is torn",
            (unsigned long)ref);
      world_check_body(bodies + i * WORLD_BODY_BYTES, ref, "gather");
    }
  }
  return NULL;
}

static void *updater_thread(void *context) {
  struct stress *stress = context;
  struct pe_ring *ring = &stress->world.ring;
  int64_t refs[8];
  uint64_t values[8], lost;
  const struct pe_source source = {(const uint8_t *)values, 8, 0};
  struct pe_fault fault;
  for (uint64_t version = 1; !atomic_load(&stress->stop); version++) {
    CHECK(pe_ring_lock_shared(ring) == PE_OK, "the lock");
    pthread_mutex_lock(&ring->draw);
    enum pe_status status = pe_ring_draw(ring, 8, refs);
    pthread_mutex_unlock(&ring->draw);
    pe_ring_unlock(ring);
    if (status != PE_OK) continue;
    for (size_t i = 0; i < 8; i++) values[i] = (uint64_t)refs[i] << 16 | (version & 0xffff);
    CHECK(pe_ring_lock(ring) == PE_OK, "the lock");
    status = pe_ring_update(ring, refs, 8, &source, &lost, &fault);
    pe_ring_unlock(ring);
    CHECK(status == PE_OK, "update: status %d", (int)status);
    nap(100);
  }
  return NULL;
}

static void *reserver_thread(void *context) {
  struct stress *stress = context;
  struct pe_fault fault;
  while (!atomic_load(&stress->stop)) {
    const enum pe_status status = pe_ring_reserve_ahead(&stress->world.ring, 3, &fault);
    CHECK(status == PE_OK || status == PE_NO_SLOT || status == PE_EMPTY, "reserve: status %d",
          (int)status);
    if (status != PE_OK) nap(500);
  }
  return NULL;
}

/* The trainer is gone and the writer has drained: every published row is in a file, or in a segment
 * that is still open, which the drain would copy. */
static void check_nothing_is_lost(struct stress *stress) {
  struct pe_ring *ring = &stress->world.ring;
  struct pe_file record;
  for (uint64_t lane = 0; lane < LANES; lane++)
    for (uint64_t row = pe_lane_tail(ring, lane); row < pe_lane_total(ring, lane); row++) {
      const uint64_t segment = row / WORLD_SEGMENT_ROWS;
      const uint64_t place = pe_control_find(ring->control, lane, segment, &record);
      CHECK(place != PE_PLACE_NONE && place != PE_PLACE_FILE, "row %lu is nowhere",
            (unsigned long)row);
      const uint64_t state = state_of(pe_control_word(ring->control, place - 1));
      CHECK(state == PE_SLOT_OPEN || state == PE_SLOT_PERSISTED, "row %lu was not written",
            (unsigned long)row);
      const uint8_t *image = ring->base + pe_control_slot_offset(ring->control, place - 1);
      if (state == PE_SLOT_PERSISTED) {
        const struct file *file =
            find_sequence(stress, pe_control_slot_file(ring->control, place - 1)->sequence);
        CHECK(file != NULL, "the file of row %lu is gone", (unsigned long)row);
        image = file->image;
      }
      world_check_image(&stress->world, image, lane, row, row + 1, "at the end");
    }
  for (size_t i = 0; i < ENTRIES; i++)
    CHECK(state_of(&stress->entries[i].staging) == FREE, "a staging slot is never freed");
}

static void run_round(uint64_t seed, unsigned milliseconds) {
  struct stress *stress = calloc(1, sizeof *stress);
  void *(*const bodies[])(void *) = {learner_thread, reader_thread, reader_thread, updater_thread,
                                     reserver_thread};
  pthread_t threads[sizeof bodies / sizeof bodies[0]], supervisor;
  stress->seed = seed;
  world_open(&stress->world, LANES, ROWS, SLOTS);
  CHECK(pthread_create(&supervisor, NULL, supervisor_thread, stress) == 0, "a thread");
  for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++)
    CHECK(pthread_create(&threads[i], NULL, bodies[i], stress) == 0, "a thread");
  for (unsigned waited = 0; waited < milliseconds; waited += 20) nap(20000);
  atomic_store(&stress->stop, true);
  for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) pthread_join(threads[i], NULL);
  atomic_store(&stress->drain, true);
  pthread_join(supervisor, NULL);
  check_nothing_is_lost(stress);
  uint64_t rows = 0;
  for (uint64_t lane = 0; lane < LANES; lane++) rows += pe_lane_total(&stress->world.ring, lane);
  printf("seed %lu: rows %lu gathered %lu persisted %lu lost %lu committed %lu cancelled %lu "
         "failed %lu deaths %lu waits %lu\n",
         (unsigned long)seed, (unsigned long)rows, (unsigned long)stress->gathered,
         (unsigned long)stress->persisted, (unsigned long)stress->lost,
         (unsigned long)stress->committed, (unsigned long)stress->cancelled,
         (unsigned long)stress->failed, (unsigned long)stress->deaths,
         (unsigned long)stress->waits);
  for (size_t i = 0; i < POOL; i++) free(stress->pool[i].image);
  world_close(&stress->world);
  free(stress);
}

/* ---- publication ---- */

#define LONG_ROWS 512u

struct publication {
  struct world world;
  atomic_bool stop;
};

/* No lock: what a writer does that drains a trainer which may have died in the middle of an append.
 * Nothing ages out here, so every published row may be read. */
static void *drain_thread(void *context) {
  struct publication *shared = context;
  struct pe_ring_control *control = shared->world.ring.control;
  uint64_t seen = 0;
  struct pe_file file;
  while (seen < LONG_ROWS && !atomic_load(&shared->stop)) {
    const uint64_t total = atomic_load_explicit(&pe_control_lane(control, 0)->total_count,
                                                memory_order_acquire);
    for (; seen < total; seen++) {
      const uint64_t place = pe_control_find(control, 0, seen / WORLD_SEGMENT_ROWS, &file);
      CHECK(place != PE_PLACE_NONE && place != PE_PLACE_FILE, "a published row is nowhere");
      world_check_image(&shared->world,
                        shared->world.base + pe_control_slot_offset(control, place - 1), 0, seen,
                        seen + 1, "published");
    }
  }
  return NULL;
}

static void run_publication(void) {
  struct publication *shared = calloc(1, sizeof *shared);
  pthread_t threads[2];
  world_open(&shared->world, 1, LONG_ROWS, LONG_ROWS / WORLD_SEGMENT_ROWS + 1);
  for (size_t i = 0; i < 2; i++)
    CHECK(pthread_create(&threads[i], NULL, drain_thread, shared) == 0, "a thread");
  for (uint64_t ref = 0; ref < LONG_ROWS; ref++) {
    struct row row;
    world_fill_row(&row, ref);
    const uint64_t priority = ref << 16;
    const struct pe_source sources[] = {{(const uint8_t *)&row.ref, 0, 0}, {row.body, 0, 0}};
    const struct pe_source mutables = {(const uint8_t *)&priority, 0, 0};
    uint64_t done = 0;
    struct pe_fault fault;
    CHECK(pe_ring_lock(&shared->world.ring) == PE_OK, "the lock");
    CHECK(pe_ring_append(&shared->world.ring, 0, 1, 1, sources, &mutables, NULL, &done, &fault) ==
              PE_OK,
          "a slot for each segment");
    pe_ring_unlock(&shared->world.ring);
    if (ref % 16 == 0) sched_yield();
  }
  for (size_t i = 0; i < 2; i++) pthread_join(threads[i], NULL);
  atomic_store(&shared->stop, true);
  world_close(&shared->world);
  free(shared);
}

int main(int argc, char **argv) {
  const double seconds = argc > 1 ? atof(argv[1]) : 2;
  const uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
  const unsigned milliseconds = seconds < 1 ? (unsigned)(seconds * 1000) : 1000;
  for (uint64_t round = 0; (double)round * milliseconds < seconds * 1000; round++) {
    run_publication();
    run_round(seed + round, milliseconds);
  }
  printf("ok\n");
  return 0;
}
