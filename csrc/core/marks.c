/* Marks of rows: read once, then kept up by appends, drops and the tail. */
#include <stdlib.h>
#include <string.h>

#include "spans.h"

static void set_mark(struct pe_ring *ring, uint64_t position, uint8_t mark) {
  const uint8_t former = ring->marks[position];
  ring->marks[position] = mark;
  /* Only under the exclusive lock: the word is atomic for those who look at it without one. */
  uint64_t valid = atomic_load_explicit(&ring->valid_rows, memory_order_relaxed);
  valid += (mark & PE_MARK_VALID) != 0;
  valid -= (former & PE_MARK_VALID) != 0;
  atomic_store_explicit(&ring->valid_rows, valid, memory_order_relaxed);
}

static void clear_valid(struct pe_ring *ring, uint64_t lane, uint64_t row) {
  const uint64_t position = pe_row_position(ring, lane, row);
  set_mark(ring, position, ring->marks[position] & (uint8_t)~PE_MARK_VALID);
}

/* The mark of a row with this start flag. */
static uint8_t mark_from(const struct pe_ring *ring, uint8_t start) {
  uint8_t mark = start & PE_MARK_START;
  if (ring->stack_count > 0) mark |= start & PE_MARK_OPENING;
  if ((mark & PE_MARK_OPENING) == 0) mark |= PE_MARK_VALID;
  return mark;
}

/* Rows from `row` on need frames of rows before it, which are gone, until a sequence starts; whether
 * the next row of the lane does too. */
static bool clear_after_gap(struct pe_ring *ring, uint64_t lane, uint64_t row) {
  const uint64_t total = pe_lane_total(ring, lane);
  const uint64_t end = row + ring->reach;
  for (; row < end; row++) {
    if (row >= total) return true;
    if (pe_mark_of(ring, lane, row) & PE_MARK_START) return false;
    clear_valid(ring, lane, row);
  }
  return false;
}

void pe_marks_append(struct pe_ring *ring, uint64_t lane, uint64_t id, uint64_t count) {
  const struct pe_place first = pe_place_of(ring, lane, id);
  const uint8_t *starts = first.image + ring->fields[ring->field_count - 1].offset + first.row;
  /* A row that leaves the window has its mark where the one that pushes it out gets its own. */
  for (uint64_t i = 0; i < count; i++)
    set_mark(ring, pe_row_position(ring, lane, id + i), mark_from(ring, starts[i]));
  if (ring->reach > 0) clear_after_gap(ring, lane, pe_lane_tail(ring, lane));
}

void pe_marks_drop(struct pe_ring *ring, uint64_t lane, uint64_t first, uint64_t end) {
  for (uint64_t row = first; row < end; row++) clear_valid(ring, lane, row);
  if (ring->reach > 0 && clear_after_gap(ring, lane, end)) ring->has_newest[lane] = false;
}

/* Rows whose start flags lie in one block: `place` is that of the first. */
struct chunk {
  struct pe_place place;
  uint64_t row;
  uint64_t count;
};

/* List the chunks of a lane's rows that were not dropped; `chunks` NULL: only count them. */
static uint64_t list_chunks(const struct pe_ring *ring, uint64_t lane, struct chunk *chunks) {
  const struct pe_field_record *field = &ring->fields[ring->field_count - 1];
  const struct pe_dropped *dropped = &ring->dropped[lane];
  const uint64_t rows = ring->control->segment_rows;
  const uint64_t step = rows >> field->block_shift == 0 ? rows : UINT64_C(1) << field->block_shift;
  const uint64_t total = pe_lane_total(ring, lane);
  uint64_t row = pe_lane_tail(ring, lane), at = dropped->begin, count = 0;
  while (row < total) {
    while (at < dropped->end && dropped->runs[at].end <= row) at++;
    uint64_t until = (row / step + 1) * step;
    if (until > total) until = total;
    if (at < dropped->end && dropped->runs[at].first <= row) {
      row = dropped->runs[at].end;
      continue;
    }
    if (at < dropped->end && dropped->runs[at].first < until) until = dropped->runs[at].first;
    if (chunks != NULL) chunks[count] = (struct chunk){pe_place_of(ring, lane, row), row, until - row};
    count++;
    row = until;
  }
  return count;
}

struct reading {
  const struct pe_ring *ring;
  const struct chunk *chunks;
  uint64_t count;
  uint8_t *marks;
};

/* Under the guard of mapped files: no more than copying. */
static void read_starts(void *context) {
  const struct reading *reading = context;
  const struct pe_ring *ring = reading->ring;
  const uint64_t offset = ring->fields[ring->field_count - 1].offset;
  for (uint64_t c = 0; c < reading->count; c++) {
    const struct chunk *chunk = &reading->chunks[c];
    const uint8_t *starts = chunk->place.image + offset + chunk->place.row;
    for (uint64_t i = 0; i < chunk->count; i++)
      reading->marks[pe_row_position(ring, chunk->place.lane, chunk->row + i)] =
          mark_from(ring, starts[i]);
  }
}

/* Verify the blocks of start flags and read all marks. */
static enum pe_status read_marks(struct pe_ring *ring, uint8_t *marks, struct pe_fault *fault) {
  const uint64_t lanes = ring->control->lanes;
  enum pe_status status = PE_OUT_OF_MEMORY;
  uint64_t count = 0;
  for (uint64_t lane = 0; lane < lanes; lane++) count += list_chunks(ring, lane, NULL);
  struct chunk *chunks = calloc((size_t)count + 1, sizeof *chunks);
  struct pe_place *places = calloc((size_t)count + 1, sizeof *places);
  uint8_t **outputs = calloc(ring->field_count, sizeof *outputs);
  if (chunks == NULL || places == NULL || outputs == NULL) goto done;
  count = 0;
  for (uint64_t lane = 0; lane < lanes; lane++) count += list_chunks(ring, lane, chunks + count);
  for (uint64_t c = 0; c < count; c++) places[c] = chunks[c].place;
  outputs[ring->field_count - 1] = marks; /* which field is wanted; nothing is written there */
  struct reading reading = {ring, chunks, count, marks};
  status = pe_mapped_verify_rows(ring, places, count, outputs, fault);
  if (status == PE_OK) status = pe_mapped_read(ring, read_starts, &reading, fault);
done:
  free(chunks);
  free(places);
  free(outputs);
  return status;
}

/* Whether the frames of the `reach` rows before `row`, or of its sequence, are all there. */
static bool has_frames(const struct pe_ring *ring, uint64_t lane, uint64_t row) {
  const uint64_t tail = pe_lane_tail(ring, lane);
  for (uint64_t i = 0; i < ring->reach; i++) {
    if (row-- == tail || pe_lane_is_dropped(ring, lane, row)) return false;
    if (pe_mark_of(ring, lane, row) & PE_MARK_START) return true;
  }
  return true;
}

/* Rebuild what the next row of each lane may continue. */
static enum pe_status recall_newest(struct pe_ring *ring, struct pe_fault *fault) {
  for (uint64_t lane = 0; lane < ring->control->lanes; lane++) {
    const struct pe_spot next = {lane, pe_lane_total(ring, lane)};
    uint8_t *to = ring->newest + lane * ring->newest_bytes;
    ring->has_newest[lane] = false;
    if (!has_frames(ring, lane, next.row)) continue;
    for (uint32_t p = 0; p < ring->stack_count; p++) {
      const struct pe_stack *stack = &ring->stacks[p];
      const enum pe_status status = pe_stacks_gather(ring, stack, &next, 1, to, NULL, fault);
      if (status != PE_OK) return status;
      to += stack->depth * ring->fields[stack->field].row_bytes;
    }
    ring->has_newest[lane] = true;
  }
  return PE_OK;
}

enum pe_status pe_marks_build(struct pe_ring *ring, struct pe_fault *fault) {
  const uint64_t lanes = ring->control->lanes;
  const uint64_t positions = lanes * ring->control->rows_per_lane;
  uint8_t *const former = ring->marks;
  const uint64_t former_valid = atomic_load_explicit(&ring->valid_rows, memory_order_relaxed);
  uint64_t valid = 0;
  uint8_t *marks = calloc((size_t)positions, 1);
  if (marks == NULL) return PE_OUT_OF_MEMORY;
  enum pe_status status = read_marks(ring, marks, fault);
  if (status != PE_OK) goto done;
  for (uint64_t i = 0; i < positions; i++) valid += (marks[i] & PE_MARK_VALID) != 0;
  ring->marks = marks;
  atomic_store_explicit(&ring->valid_rows, valid, memory_order_relaxed);
  if (ring->stack_count > 0) {
    for (uint64_t lane = 0; lane < lanes; lane++) {
      const struct pe_dropped *dropped = &ring->dropped[lane];
      clear_after_gap(ring, lane, pe_lane_tail(ring, lane));
      for (uint64_t at = dropped->begin; at < dropped->end; at++)
        clear_after_gap(ring, lane, dropped->runs[at].end);
    }
    status = recall_newest(ring, fault);
  }
done:
  if (status == PE_OK) {
    free(former);
  } else {
    free(marks);
    ring->marks = former;
    atomic_store_explicit(&ring->valid_rows, former_valid, memory_order_relaxed);
  }
  return status;
}
