/* Adding rows: copied into open segments, published by their count, sealed when full. */
#include <string.h>
#include <unistd.h>

#include "ring.h"

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
    pe_ring_release_segment(ring, lane_index, s);
  if (pe_has_dropped(ring)) pe_ring_trim_dropped(ring, lane_index, new_tail);
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
