/* Adding rows: copied into open segments, published by their count, sealed when full. */
#include <string.h>
#include <unistd.h>

#include "append.h"
#include "priorities.h"
#include "streaming.h"

static void seal_segment(struct pe_ring *ring, uint64_t lane, uint64_t segment) {
  struct pe_table_entry *entry = pe_control_entry(ring->control, lane, segment);
  const uint64_t slot = atomic_load_explicit(&entry->place, memory_order_relaxed) - 1;
  const uint64_t key = segment * ring->control->lanes + lane;
  const bool moved = pe_word_move(pe_control_word(ring->control, slot), pe_word(key, PE_SLOT_OPEN),
                                  pe_word(key, PE_SLOT_SEALED));
  assert(moved);
  (void)moved;
  if (ring->seal_event >= 0) {
    const uint64_t one = 1;
    /* A full counter is already a wake-up: EAGAIN loses nothing. */
    const ssize_t written = write(ring->seal_event, &one, sizeof one);
    (void)written;
  }
}

static bool is_wanted(const struct pe_batch *batch, uint64_t step, uint64_t l) {
  return batch->mask == NULL || batch->mask[step * batch->lane_count + l];
}

/* Copy `count` values of `bytes` to one place after another. The next to read them is the writer, or
 * a batch among a million rows. */
static void copy_values(uint8_t *to, const uint8_t *from, uint64_t from_step, size_t bytes,
                        uint64_t count) {
  if (from_step == bytes) {
    pe_copy_large(to, from, bytes * count);
    return;
  }
  /* Constant sizes let the compiler copy in registers; rewards, flags and actions are these. */
  switch (bytes) {
#define CASE(size)                                                           \
  case size:                                                                 \
    for (uint64_t i = 0; i < count; i++)                                     \
      memcpy(to + i * (size), from + i * from_step, (size));                 \
    return
    CASE(1);
    CASE(2);
    CASE(4);
    CASE(8);
#undef CASE
    default:
      for (uint64_t i = 0; i < count; i++)
        pe_copy_large(to + i * bytes, from + i * from_step, bytes);
  }
}

/* Copy `count` consecutive steps of a batch's lane into its open segment, starting at row `id`. */
static void copy_steps(struct pe_ring *ring, uint8_t *image, const struct pe_batch *batch, uint64_t l,
                       uint64_t id, uint64_t step, uint64_t count) {
  const uint64_t row = id & (ring->control->segment_rows - 1);
  for (uint32_t f = 0; f + 1 < ring->field_count; f++) {
    const struct pe_source *source = &batch->sources[f];
    const size_t bytes = (size_t)ring->fields[f].row_bytes;
    const uint8_t *from = source->data + step * source->step_bytes + l * source->lane_bytes;
    uint8_t *to = image + ring->fields[f].offset + row * bytes;
    copy_values(to, from, source->step_bytes, bytes, count);
  }
  const uint64_t per_lane = ring->control->rows_per_lane;
  const uint64_t lane = batch->lane_begin + l;
  for (uint32_t f = 0; f < ring->mutable_count; f++) {
    const struct pe_source *source = &batch->mutables[f];
    const size_t bytes = (size_t)ring->mutables[f].row_bytes;
    const uint8_t *from = source->data + step * source->step_bytes + l * source->lane_bytes;
    uint8_t *values = ring->base + ring->mutables[f].offset + lane * per_lane * bytes;
    for (uint64_t i = 0, at = id % per_lane; i < count; at = 0) { /* around the end at most once */
      const uint64_t rest = count - i < per_lane - at ? count - i : per_lane - at;
      copy_values(values + at * bytes, from + i * source->step_bytes, source->step_bytes, bytes,
                  rest);
      i += rest;
    }
  }
}

/* Set the start flags of rows id .. id + count, at least one, and the lane's pending break. */
static void mark_starts(struct pe_ring *ring, uint8_t *image, struct pe_lane *lane, uint64_t id,
                        uint64_t count) {
  const uint64_t row = id & (ring->control->segment_rows - 1);
  uint8_t *starts = image + ring->fields[ring->field_count - 1].offset + row;
  uint64_t pending = 0;
  starts[0] = (uint8_t)atomic_load_explicit(&lane->break_pending, memory_order_relaxed);
  memset(starts + 1, 0, count - 1);
  for (uint32_t e = 0; e < ring->end_count; e++) {
    const uint8_t *ends = image + ring->fields[ring->end_fields[e]].offset + row;
    for (uint64_t i = 0; i + 1 < count; i++) starts[i + 1] |= ends[i] != 0;
    pending |= ends[count - 1] != 0;
  }
  atomic_store_explicit(&lane->break_pending, pending, memory_order_relaxed);
}

static uint8_t *open_image(const struct pe_ring *ring, uint64_t lane, uint64_t segment) {
  const struct pe_table_entry *entry = pe_control_entry(ring->control, lane, segment);
  const uint64_t slot = atomic_load_explicit(&entry->place, memory_order_relaxed) - 1;
  return ring->base + pe_control_slot_offset(ring->control, slot);
}

uint8_t *pe_append_image(const struct pe_ring *ring, uint64_t lane) {
  return open_image(ring, lane, pe_lane_total(ring, lane) >> ring->segment_shift);
}

void pe_append_publish(struct pe_ring *ring, uint64_t lane_index, uint64_t count) {
  struct pe_lane *lane = pe_control_lane(ring->control, lane_index);
  const uint64_t id = atomic_load_explicit(&lane->total_count, memory_order_relaxed);
  const uint64_t tail = atomic_load_explicit(&lane->tail, memory_order_relaxed);
  const uint64_t per_lane = ring->control->rows_per_lane;
  const uint64_t segment = id >> ring->segment_shift;
  const uint64_t total = id + count;
  const uint64_t new_tail = total > per_lane && total - per_lane > tail ? total - per_lane : tail;
  pe_order_stores();
  /* The tail first: a reader between the two stores sees rows missing, never one row too many. */
  atomic_store_explicit(&lane->tail, new_tail, memory_order_release);
  atomic_store_explicit(&lane->total_count, total, memory_order_release);
  if (ring->marks != NULL) pe_marks_append(ring, lane_index, id, count);
  if ((total & (ring->control->segment_rows - 1)) == 0) seal_segment(ring, lane_index, segment);
  for (uint64_t s = tail >> ring->segment_shift; s < new_tail >> ring->segment_shift; s++)
    pe_ring_release_segment(ring, lane_index, s);
  if (pe_has_dropped(ring)) pe_ring_trim_dropped(ring, lane_index, new_tail);
}

void pe_append_run(struct pe_ring *ring, const struct pe_batch *batch, uint64_t l, uint64_t step,
                   uint64_t count) {
  const uint64_t lane = batch->lane_begin + l;
  const uint64_t id = pe_lane_total(ring, lane);
  const uint64_t end = step + count;
  uint64_t total = id;

  while (step < end && !is_wanted(batch, step, l)) step++;
  if (step == end) return;
  uint8_t *image = pe_append_image(ring, lane);
  while (step < end) {
    const uint64_t first = step;
    if (batch->mask == NULL) step = end;
    while (step < end && is_wanted(batch, step, l)) step++;
    copy_steps(ring, image, batch, l, total, first, step - first);
    total += step - first;
    while (step < end && !is_wanted(batch, step, l)) step++;
  }
  mark_starts(ring, image, pe_control_lane(ring->control, lane), id, total - id);
  if (ring->priorities != NULL) pe_priorities_added(ring, lane, id, total - id, batch->mutables);
  pe_append_publish(ring, lane, total - id);
}

enum pe_status pe_append_open(struct pe_ring *ring, const struct pe_batch *batch, uint64_t step,
                              const uint32_t *openings, struct pe_fault *fault) {
  const uint64_t row_mask = ring->control->segment_rows - 1;
  for (uint64_t l = 0; l < batch->lane_count; l++) {
    if (!is_wanted(batch, step, l)) continue;
    const uint64_t lane = batch->lane_begin + l;
    const uint64_t id = pe_lane_total(ring, lane);
    const uint64_t last = id + (openings == NULL ? 0 : openings[lane]);
    /* The segment that has rows already is open. */
    uint64_t segment = (id + row_mask) >> ring->segment_shift;
    for (; segment <= last >> ring->segment_shift; segment++) {
      const struct pe_table_entry *entry = pe_control_entry(ring->control, lane, segment);
      if (atomic_load_explicit(&entry->segment_plus_one, memory_order_relaxed) == segment + 1 &&
          ring->images[pe_ring_index(ring, lane, segment)] != NULL)
        continue; /* opened by an earlier try that had to wait for another slot */
      uint8_t *image;
      const enum pe_status status = pe_ring_open_segment(ring, lane, segment, &image, fault);
      if (status != PE_OK) return status;
    }
  }
  return PE_OK;
}

/* How many steps from `step` on need no other segments than those that `step` itself needs. */
static uint64_t steps_at_once(const struct pe_ring *ring, const struct pe_batch *batch, uint64_t step,
                              uint64_t steps) {
  const uint64_t segment_rows = ring->control->segment_rows;
  uint64_t count = steps - step < segment_rows ? steps - step : segment_rows;
  for (uint64_t l = 0; l < batch->lane_count; l++) {
    const uint64_t used = pe_lane_total(ring, batch->lane_begin + l) & (segment_rows - 1);
    uint64_t room = segment_rows - used;
    if (used == 0 && !is_wanted(batch, step, l)) /* not opened: up to its first row */
      for (room = 1; room < count && !is_wanted(batch, step + room, l);) room++;
    if (room < count) count = room;
  }
  return count;
}

/* Lane after lane, as many steps at once as segments allow: a step at a time, 8 lanes cost three
 * times as much as one. */
enum pe_status pe_ring_append(struct pe_ring *ring, uint64_t lane_begin, uint64_t lane_count,
                              uint64_t steps, const struct pe_source *sources,
                              const struct pe_source *mutables, const uint8_t *mask,
                              uint64_t *done, struct pe_fault *fault) {
  const struct pe_batch batch = {lane_begin, lane_count, sources, mutables, mask};
  if (ring->priorities != NULL && *done == 0) {
    const enum pe_status status =
        pe_priorities_check_rows(ring, lane_count, steps, mutables, mask, fault);
    if (status != PE_OK) return status;
  }
  while (*done < steps) {
    const enum pe_status status = pe_append_open(ring, &batch, *done, NULL, fault);
    if (status != PE_OK) return status;
    const uint64_t count = steps == 1 ? 1 : steps_at_once(ring, &batch, *done, steps);
    for (uint64_t l = 0; l < lane_count; l++) pe_append_run(ring, &batch, l, *done, count);
    *done += count;
  }
  return PE_OK;
}
