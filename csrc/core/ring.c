#include "ring.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum pe_status pe_ring_open(struct pe_ring *ring) {
  const struct pe_ring_control *control = ring->control;
  const size_t entries = (size_t)control->lanes * control->table_length;
  pthread_rwlockattr_t attributes;

  ring->segment_shift = (uint32_t)__builtin_ctzll(control->segment_rows);
  ring->images = calloc(entries, sizeof *ring->images);
  ring->is_file = calloc(entries, sizeof *ring->is_file);
  ring->free_slots = calloc(control->slot_count, sizeof *ring->free_slots);
  ring->is_reserved = calloc(control->slot_count, sizeof *ring->is_reserved);
  uint64_t *windows = calloc((size_t)control->lanes * 2 * PE_MAX_HOLDS, sizeof *windows);
  if (ring->images == NULL || ring->is_file == NULL || ring->free_slots == NULL ||
      ring->is_reserved == NULL || windows == NULL) {
    free(windows);
    ring->holds[0].tails = NULL;
    pe_ring_close(ring);
    return PE_OUT_OF_MEMORY;
  }
  for (size_t i = 0; i < PE_MAX_HOLDS; i++) {
    ring->holds[i].tails = windows + 2 * i * control->lanes;
    ring->holds[i].totals = ring->holds[i].tails + control->lanes;
  }
  /* The stack hands out slot 0 first. */
  for (uint64_t slot = control->slot_count; slot-- > 0;)
    ring->free_slots[ring->free_count++] = slot;

  pthread_rwlockattr_init(&attributes);
  /* Else a stream of gathers starves the append. */
  pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
  pthread_rwlock_init(&ring->lock, &attributes);
  pthread_rwlockattr_destroy(&attributes);
  pthread_mutex_init(&ring->draw, NULL);
  return PE_OK;
}

void pe_ring_close(struct pe_ring *ring) {
  free(ring->images);
  free(ring->is_file);
  free(ring->free_slots);
  free(ring->is_reserved);
  free(ring->holds[0].tails);
  ring->images = NULL;
  ring->is_file = NULL;
  ring->free_slots = NULL;
  ring->is_reserved = NULL;
  memset(ring->holds, 0, sizeof ring->holds);
}

enum pe_status pe_ring_lock(struct pe_ring *ring) {
  return pthread_rwlock_wrlock(&ring->lock) == 0 ? PE_OK : PE_BUSY;
}

enum pe_status pe_ring_lock_shared(struct pe_ring *ring) {
  return pthread_rwlock_rdlock(&ring->lock) == 0 ? PE_OK : PE_BUSY;
}

bool pe_ring_try_lock(struct pe_ring *ring) { return pthread_rwlock_trywrlock(&ring->lock) == 0; }

void pe_ring_unlock(struct pe_ring *ring) { pthread_rwlock_unlock(&ring->lock); }

/* --- holds -------------------------------------------------------------------------------- */

static bool hold_is_active(const struct pe_hold *hold) {
  if (hold->word == NULL) return false;
  const uint64_t word = atomic_load_explicit(hold->word, memory_order_acquire);
  const uint64_t state = pe_word_state(word);
  return pe_word_tag(word) == hold->sequence &&
         (state == PE_SNAPSHOT_PENDING || state == PE_SNAPSHOT_COMMITTING);
}

static bool segment_is_held(const struct pe_ring *ring, uint64_t lane, uint64_t segment) {
  const uint64_t first = segment << ring->segment_shift;
  const uint64_t end = first + ring->control->segment_rows;
  for (size_t i = 0; i < PE_MAX_HOLDS; i++) {
    const struct pe_hold *hold = &ring->holds[i];
    if (hold->word != NULL && hold->tails[lane] < end && hold->totals[lane] > first &&
        hold_is_active(hold))
      return true;
  }
  return false;
}

bool pe_ring_hold(struct pe_ring *ring, _Atomic uint64_t *word, uint64_t sequence) {
  for (size_t i = 0; i < PE_MAX_HOLDS; i++) {
    struct pe_hold *hold = &ring->holds[i];
    if (hold_is_active(hold)) continue;
    hold->word = word;
    hold->sequence = sequence;
    for (uint64_t lane = 0; lane < ring->control->lanes; lane++) {
      hold->tails[lane] = pe_lane_tail(ring, lane);
      hold->totals[lane] = pe_lane_total(ring, lane);
    }
    return true;
  }
  return false;
}

void pe_ring_drop_holds(struct pe_ring *ring) {
  for (size_t i = 0; i < PE_MAX_HOLDS; i++) ring->holds[i].word = NULL;
}

/* --- slots -------------------------------------------------------------------------------- */

/* Free a slot whatever the writer is doing with it: the writer's own swaps then fail. */
static void free_slot(struct pe_ring *ring, uint64_t slot) {
  atomic_store_explicit(pe_control_word(ring->control, slot), pe_word(0, PE_SLOT_FREE),
                        memory_order_release);
  ring->free_slots[ring->free_count++] = slot;
}

/* Let go of a segment whose last row left the window; false while a pending snapshot needs it in
 * memory. A persisted one that a snapshot needs lives on as its file. */
static bool release_segment(struct pe_ring *ring, uint64_t lane, uint64_t segment) {
  struct pe_table_entry *entry = pe_control_entry(ring->control, lane, segment);
  const uint64_t index = pe_ring_index(ring, lane, segment);
  const uint64_t place = atomic_load_explicit(&entry->place, memory_order_relaxed);
  if (atomic_load_explicit(&entry->segment_plus_one, memory_order_relaxed) != segment + 1 ||
      place == PE_PLACE_NONE)
    return true;
  const bool held = segment_is_held(ring, lane, segment);
  if (place == PE_PLACE_FILE) {
    if (ring->images[index] != NULL) {
      ring->images[index] = NULL;
      ring->file_count--;
      ring->retired_files++;
    }
    if (held) return true;
  } else {
    const uint64_t slot = place - 1;
    const uint64_t word =
        atomic_load_explicit(pe_control_word(ring->control, slot), memory_order_acquire);
    if (held && pe_word_state(word) != PE_SLOT_PERSISTED) return false;
    if (held) entry->file = *pe_control_slot_file(ring->control, slot);
    ring->images[index] = NULL;
    atomic_store_explicit(&entry->place, held ? PE_PLACE_FILE : PE_PLACE_NONE,
                          memory_order_release);
    free_slot(ring, slot);
    return true;
  }
  atomic_store_explicit(&entry->place, PE_PLACE_NONE, memory_order_release);
  return true;
}

void pe_ring_collect(struct pe_ring *ring) {
  struct pe_ring_control *control = ring->control;
  for (uint64_t slot = 0; slot < control->slot_count; slot++) {
    const uint64_t word = atomic_load_explicit(pe_control_word(control, slot), memory_order_acquire);
    if (pe_word_state(word) == PE_SLOT_FREE || pe_word_state(word) == PE_SLOT_OPEN) continue;
    const uint64_t lane = pe_word_tag(word) % control->lanes;
    const uint64_t segment = pe_word_tag(word) / control->lanes;
    if ((segment + 1) << ring->segment_shift <= pe_lane_tail(ring, lane))
      release_segment(ring, lane, segment);
  }
}

/* Whether the table entry of a new segment is no longer needed by the one it stood for. */
static bool entry_is_reusable(struct pe_ring *ring, uint64_t lane, uint64_t segment) {
  struct pe_table_entry *entry = pe_control_entry(ring->control, lane, segment);
  const uint64_t former = atomic_load_explicit(&entry->segment_plus_one, memory_order_relaxed);
  if (former == 0 || atomic_load_explicit(&entry->place, memory_order_relaxed) == PE_PLACE_NONE)
    return true;
  if (!release_segment(ring, lane, former - 1)) return false;
  return !segment_is_held(ring, lane, former - 1);
}

static int reserve_slot(struct pe_ring *ring, uint64_t slot) {
  const uint64_t offset = pe_control_slot_offset(ring->control, slot);
  int error;
  do
    error = posix_fallocate(ring->arena_fd, (off_t)offset, (off_t)ring->control->slot_bytes);
  while (error == EINTR);
  return error;
}

/* Index in the free stack of the slot to use next, or -1: reserved ones first, newest first. */
static int64_t choose_free(const struct pe_ring *ring, bool reserved) {
  for (uint64_t i = ring->free_count; i-- > 0;)
    if (ring->is_reserved[ring->free_slots[i]] == reserved) return (int64_t)i;
  return -1;
}

static uint64_t take_free(struct pe_ring *ring, int64_t at) {
  const uint64_t slot = ring->free_slots[at];
  memmove(&ring->free_slots[at], &ring->free_slots[at + 1],
          (size_t)(ring->free_count - (uint64_t)at - 1) * sizeof *ring->free_slots);
  ring->free_count--;
  return slot;
}

enum pe_status pe_ring_reserve_ahead(struct pe_ring *ring, uint64_t ahead) {
  uint64_t reserved = 0;
  bool all = true;
  if (pe_ring_lock(ring) != PE_OK) return PE_BUSY;
  for (uint64_t i = 0; i < ring->free_count; i++) reserved += ring->is_reserved[ring->free_slots[i]];
  for (uint64_t slot = 0; slot < ring->control->slot_count; slot++) all &= ring->is_reserved[slot];
  const int64_t at = reserved < ahead ? choose_free(ring, false) : -1;
  const uint64_t slot = at < 0 ? 0 : take_free(ring, at);
  pe_ring_unlock(ring);
  if (at < 0) return all ? PE_EMPTY : PE_NO_SLOT;

  const int error = reserve_slot(ring, slot);
#ifdef MADV_POPULATE_WRITE
  if (error == 0)
    (void)madvise(ring->base + pe_control_slot_offset(ring->control, slot),
                  ring->control->slot_bytes, MADV_POPULATE_WRITE);
#endif
  if (pe_ring_lock(ring) != PE_OK) return PE_BUSY; /* cannot be: this thread holds nothing */
  ring->is_reserved[slot] = error == 0;
  ring->free_slots[ring->free_count++] = slot;
  pe_ring_unlock(ring);
  return error == 0 ? PE_OK : PE_NO_MEMORY;
}

enum pe_status pe_ring_open_segment(struct pe_ring *ring, uint64_t lane, uint64_t segment,
                                    uint8_t **image, struct pe_fault *fault) {
  struct pe_ring_control *control = ring->control;
  if (!entry_is_reusable(ring, lane, segment)) return PE_NO_SLOT;
  if (ring->free_count == 0) pe_ring_collect(ring);
  int64_t at = choose_free(ring, true);
  if (at < 0) at = choose_free(ring, false);
  if (at < 0) return PE_NO_SLOT;
  const uint64_t slot = ring->free_slots[at];
  if (!ring->is_reserved[slot]) {
    const int error = reserve_slot(ring, slot);
    if (error != 0) {
      fault->got = (uint64_t)error;
      return PE_NO_MEMORY;
    }
    ring->is_reserved[slot] = true;
  }
  take_free(ring, at);

  uint8_t *start = ring->base + pe_control_slot_offset(control, slot);
  memcpy(start, ring->header_image, ring->header_bytes);
  struct pe_segment_header *header = (void *)start;
  header->line = atomic_load_explicit(&control->line, memory_order_relaxed);
  pe_segment_runs(header)->lane = (uint32_t)lane;
  pe_segment_runs(header)->first_row = segment << ring->segment_shift;

  struct pe_table_entry *entry = pe_control_entry(control, lane, segment);
  const uint64_t index = pe_ring_index(ring, lane, segment);
  atomic_store_explicit(&entry->place, PE_PLACE_NONE, memory_order_release);
  atomic_store_explicit(&entry->segment_plus_one, segment + 1, memory_order_release);
  atomic_store_explicit(pe_control_word(control, slot),
                        pe_word(segment * control->lanes + lane, PE_SLOT_OPEN),
                        memory_order_release);
  atomic_store_explicit(&entry->place, slot + 1, memory_order_release);
  ring->images[index] = start;
  ring->is_file[index] = false;
  *image = start;
  return PE_OK;
}

/* --- append ------------------------------------------------------------------------------- */

static void seal_segment(struct pe_ring *ring, uint64_t lane, uint64_t segment) {
  struct pe_table_entry *entry = pe_control_entry(ring->control, lane, segment);
  const uint64_t slot = atomic_load_explicit(&entry->place, memory_order_relaxed) - 1;
  const uint64_t key = segment * ring->control->lanes + lane;
  atomic_store_explicit(pe_control_word(ring->control, slot), pe_word(key, PE_SLOT_SEALED),
                        memory_order_release);
  if (ring->seal_event >= 0) {
    const uint64_t one = 1;
    /* A full counter is already a wake-up: EAGAIN loses nothing. */
    const ssize_t written = write(ring->seal_event, &one, sizeof one);
    (void)written;
  }
}

/* Copy `count` consecutive steps of one lane into its open segment, starting at row `id`. */
static void copy_rows(struct pe_ring *ring, uint8_t *image, uint64_t lane, uint64_t id,
                      uint64_t step, uint64_t source_lane, uint64_t count,
                      const struct pe_source *sources, const struct pe_source *mutables) {
  const uint64_t row = id & (ring->control->segment_rows - 1);
  for (uint32_t f = 0; f + 1 < ring->field_count; f++) {
    const struct pe_source *source = &sources[f];
    const size_t bytes = (size_t)ring->fields[f].row_bytes;
    uint8_t *to = image + ring->fields[f].offset + row * bytes;
    const uint8_t *from =
        source->data + step * source->step_bytes + source_lane * source->lane_bytes;
    if (source->step_bytes == bytes) {
      memcpy(to, from, bytes * count);
    } else {
      for (uint64_t i = 0; i < count; i++, to += bytes, from += source->step_bytes)
        memcpy(to, from, bytes);
    }
  }
  const uint64_t per_lane = ring->control->rows_per_lane;
  for (uint32_t f = 0; f < ring->mutable_count; f++) {
    const struct pe_source *source = &mutables[f];
    const size_t bytes = (size_t)ring->mutables[f].row_bytes;
    const uint8_t *from =
        source->data + step * source->step_bytes + source_lane * source->lane_bytes;
    for (uint64_t i = 0; i < count; i++, from += source->step_bytes) {
      const uint64_t position = lane * per_lane + (id + i) % per_lane;
      memcpy(ring->base + ring->mutables[f].offset + position * bytes, from, bytes);
    }
  }
}

/* Set the start flags of rows id .. id + count and the lane's pending break. */
static void mark_starts(struct pe_ring *ring, uint8_t *image, struct pe_lane *lane, uint64_t id,
                        uint64_t count) {
  const uint64_t row = id & (ring->control->segment_rows - 1);
  uint8_t *starts = image + ring->fields[ring->field_count - 1].offset + row;
  uint64_t pending = atomic_load_explicit(&lane->break_pending, memory_order_relaxed);
  for (uint64_t i = 0; i < count; i++) {
    starts[i] = (uint8_t)pending;
    pending = 0;
    for (uint32_t e = 0; e < ring->end_count; e++) {
      const struct pe_field_record *field = &ring->fields[ring->end_fields[e]];
      pending |= image[field->offset + row + i] != 0;
    }
  }
  atomic_store_explicit(&lane->break_pending, pending, memory_order_relaxed);
}

static uint8_t *open_image(const struct pe_ring *ring, uint64_t lane, uint64_t segment) {
  const struct pe_table_entry *entry = pe_control_entry(ring->control, lane, segment);
  const uint64_t slot = atomic_load_explicit(&entry->place, memory_order_relaxed) - 1;
  return ring->base + pe_control_slot_offset(ring->control, slot);
}

/* Append up to `count` steps of one lane, all within one segment whose image is at hand. */
static void append_run(struct pe_ring *ring, uint64_t lane_index, uint64_t step,
                       uint64_t source_lane, uint64_t count, const struct pe_source *sources,
                       const struct pe_source *mutables) {
  struct pe_lane *lane = pe_control_lane(ring->control, lane_index);
  const uint64_t id = atomic_load_explicit(&lane->total_count, memory_order_relaxed);
  const uint64_t tail = atomic_load_explicit(&lane->tail, memory_order_relaxed);
  const uint64_t per_lane = ring->control->rows_per_lane;
  const uint64_t segment = id >> ring->segment_shift;
  uint8_t *image = open_image(ring, lane_index, segment);

  copy_rows(ring, image, lane_index, id, step, source_lane, count, sources, mutables);
  mark_starts(ring, image, lane, id, count);
  const uint64_t total = id + count;
  const uint64_t new_tail = total > per_lane && total - per_lane > tail ? total - per_lane : tail;
  /* The tail first: a reader between the two stores sees rows missing, never one row too many. */
  atomic_store_explicit(&lane->tail, new_tail, memory_order_release);
  atomic_store_explicit(&lane->total_count, total, memory_order_release);
  if ((total & (ring->control->segment_rows - 1)) == 0) seal_segment(ring, lane_index, segment);
  for (uint64_t s = tail >> ring->segment_shift; s < new_tail >> ring->segment_shift; s++)
    release_segment(ring, lane_index, s);
}

/* Open the segments that one step needs; rows are added only where all of them have a place. */
static enum pe_status open_for_step(struct pe_ring *ring, uint64_t lane_begin, uint64_t lane_count,
                                    const uint8_t *mask, struct pe_fault *fault) {
  for (uint64_t l = 0; l < lane_count; l++) {
    if (mask != NULL && !mask[l]) continue;
    const uint64_t lane = lane_begin + l;
    const uint64_t id = pe_lane_total(ring, lane);
    if ((id & (ring->control->segment_rows - 1)) != 0) continue;
    const uint64_t segment = id >> ring->segment_shift;
    const struct pe_table_entry *entry = pe_control_entry(ring->control, lane, segment);
    if (atomic_load_explicit(&entry->segment_plus_one, memory_order_relaxed) == segment + 1 &&
        ring->images[pe_ring_index(ring, lane, segment)] != NULL)
      continue; /* opened by an earlier try that had to wait for another lane's slot */
    uint8_t *image;
    const enum pe_status status = pe_ring_open_segment(ring, lane, segment, &image, fault);
    if (status != PE_OK) return status;
  }
  return PE_OK;
}

enum pe_status pe_ring_append(struct pe_ring *ring, uint64_t lane_begin, uint64_t lane_count,
                              uint64_t steps, const struct pe_source *sources,
                              const struct pe_source *mutables, const uint8_t *mask,
                              uint64_t *done, struct pe_fault *fault) {
  const uint64_t segment_rows = ring->control->segment_rows;
  while (*done < steps) {
    const uint8_t *step_mask = mask == NULL ? NULL : mask + *done * lane_count;
    const enum pe_status status = open_for_step(ring, lane_begin, lane_count, step_mask, fault);
    if (status != PE_OK) return status;
    uint64_t count = 1;
    if (lane_count == 1 && mask == NULL) {
      const uint64_t room = segment_rows - (pe_lane_total(ring, lane_begin) & (segment_rows - 1));
      count = steps - *done < room ? steps - *done : room;
    }
    for (uint64_t l = 0; l < lane_count; l++)
      if (step_mask == NULL || step_mask[l])
        append_run(ring, lane_begin + l, *done, l, count, sources, mutables);
    *done += count;
  }
  return PE_OK;
}

void pe_ring_break(struct pe_ring *ring, uint64_t lane) {
  atomic_store_explicit(&pe_control_lane(ring->control, lane)->break_pending, 1,
                        memory_order_relaxed);
}

/* --- restore ------------------------------------------------------------------------------ */

void pe_ring_set_lane(struct pe_ring *ring, uint64_t lane, uint64_t tail, uint64_t total_count,
                      bool break_pending) {
  struct pe_lane *shared = pe_control_lane(ring->control, lane);
  atomic_store_explicit(&shared->break_pending, break_pending, memory_order_relaxed);
  atomic_store_explicit(&shared->tail, tail, memory_order_release);
  atomic_store_explicit(&shared->total_count, total_count, memory_order_release);
}

void pe_ring_map_segment(struct pe_ring *ring, uint64_t lane, uint64_t segment,
                         const uint8_t *image, const struct pe_file *file) {
  struct pe_table_entry *entry = pe_control_entry(ring->control, lane, segment);
  const uint64_t index = pe_ring_index(ring, lane, segment);
  entry->file = *file;
  atomic_store_explicit(&entry->segment_plus_one, segment + 1, memory_order_release);
  atomic_store_explicit(&entry->place, PE_PLACE_FILE, memory_order_release);
  ring->images[index] = image;
  ring->is_file[index] = true;
  ring->file_count++;
}
