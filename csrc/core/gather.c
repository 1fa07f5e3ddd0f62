/* Reading rows: draws, gathers, updates by ref. */
#include <stdlib.h>
#include <string.h>

#include "mapped.h"
#include "priorities.h"
#include "spans.h"

#define STACK_PLACES 256

/* The same where rows were dropped: valid rows are counted around the holes. */
static enum pe_status draw_around(struct pe_ring *ring, uint64_t count, int64_t *refs) {
  const uint64_t lanes = ring->control->lanes;
  uint64_t rows = 0;
  for (uint64_t lane = 0; lane < lanes; lane++)
    rows += pe_lane_total(ring, lane) - pe_lane_tail(ring, lane) - pe_lane_dropped(ring, lane);
  if (rows == 0) return PE_EMPTY;
  for (uint64_t i = 0; i < count; i++) {
    uint64_t pick = pe_pcg64_below(&ring->rng, rows);
    for (uint64_t lane = 0;; lane++) {
      const uint64_t tail = pe_lane_tail(ring, lane);
      const uint64_t length = pe_lane_total(ring, lane) - tail - pe_lane_dropped(ring, lane);
      if (pick < length) {
        refs[i] = (int64_t)(pe_lane_row(ring, lane, tail, pick) * lanes + lane);
        break;
      }
      pick -= length;
    }
  }
  return PE_OK;
}

enum pe_status pe_ring_draw(struct pe_ring *ring, uint64_t count, int64_t *refs) {
  const uint64_t lanes = ring->control->lanes;
  const uint64_t length = pe_lane_total(ring, 0) - pe_lane_tail(ring, 0);
  uint64_t rows = 0;
  bool is_even = true;
  if (pe_has_dropped(ring)) return draw_around(ring, count, refs);
  for (uint64_t lane = 0; lane < lanes; lane++) {
    const uint64_t own = pe_lane_total(ring, lane) - pe_lane_tail(ring, lane);
    is_even &= own == length;
    rows += own;
  }
  if (rows == 0) return PE_EMPTY;
  for (uint64_t i = 0; i < count; i++) {
    uint64_t pick = pe_pcg64_below(&ring->rng, rows);
    uint64_t lane = 0;
    if (is_even) { /* no walk along the lanes */
      lane = lanes == 1 ? 0 : pick / length;
      pick -= lane * length;
    } else {
      for (uint64_t own; pick >= (own = pe_lane_total(ring, lane) - pe_lane_tail(ring, lane));) {
        pick -= own;
        lane++;
      }
    }
    refs[i] = (int64_t)((pe_lane_tail(ring, lane) + pick) * lanes + lane);
  }
  return PE_OK;
}

static enum pe_status find_rows(const struct pe_ring *ring, const int64_t *refs, uint64_t count,
                                struct pe_place *places, struct pe_fault *fault) {
  const uint64_t lanes = ring->control->lanes;
  const uint64_t per_lane = ring->control->rows_per_lane;
  const uint64_t mask = ring->control->segment_rows - 1;
  const bool has_holes = pe_has_holes(ring);
  const bool has_mutables = ring->mutable_count > 0;
  for (uint64_t i = 0; i < count; i++) {
    const uint64_t ref = (uint64_t)refs[i];
    const uint64_t id = lanes == 1 ? ref : ref / lanes;
    const uint64_t lane = ref - id * lanes;
    if (refs[i] < 0 || id >= pe_lane_total(ring, lane) || id < pe_lane_tail(ring, lane)) {
      fault->row = refs[i];
      return PE_UNKNOWN_REF;
    }
    if (has_holes && pe_row_is_hole(ring, lane, id)) {
      fault->row = refs[i];
      return pe_lane_is_dropped(ring, lane, id) ? PE_DROPPED : PE_UNKNOWN_REF;
    }
    const uint64_t segment = id >> ring->segment_shift;
    const uint8_t *image = ring->images[pe_ring_index(ring, lane, segment)];
    const uint64_t position = has_mutables ? lane * per_lane + id % per_lane : 0;
    places[i] = (struct pe_place){image, id & mask, lane, segment, position};
  }
  return PE_OK;
}

static void copy_field(const struct pe_field_record *field, const struct pe_place *places,
                       uint64_t count, uint8_t *output) {
  const size_t bytes = (size_t)field->row_bytes;
  const uint64_t offset = field->offset;
  /* Constant sizes let the compiler copy in registers; rewards, flags and actions are these. */
  switch (bytes) {
#define CASE(size)                                                                       \
  case size:                                                                             \
    for (uint64_t i = 0; i < count; i++)                                                 \
      memcpy(output + i * (size), places[i].image + offset + places[i].row * (size), (size)); \
    return
    CASE(1);
    CASE(2);
    CASE(4);
    CASE(8);
#undef CASE
    default:
      for (uint64_t i = 0; i < count; i++) {
        if (i + 4 < count)
          __builtin_prefetch(places[i + 4].image + offset + places[i + 4].row * bytes);
        memcpy(output + i * bytes, places[i].image + offset + places[i].row * bytes, bytes);
      }
  }
}

struct copy {
  const struct pe_ring *ring;
  const struct pe_place *places;
  uint64_t count;
  uint8_t *const *outputs;
};

static void copy_rows(void *context) {
  const struct copy *copy = context;
  for (uint32_t f = 0; f < copy->ring->field_count; f++)
    if (copy->outputs[f] != NULL)
      copy_field(&copy->ring->fields[f], copy->places, copy->count, copy->outputs[f]);
}

enum pe_status pe_ring_gather(struct pe_ring *ring, const int64_t *refs, uint64_t count,
                              uint8_t *const *outputs, uint8_t *const *mutable_outputs,
                              struct pe_fault *fault) {
  struct pe_place stack[STACK_PLACES];
  struct pe_place *places = stack;
  if (count > STACK_PLACES) {
    places = malloc((size_t)count * sizeof *places);
    if (places == NULL) return PE_OUT_OF_MEMORY;
  }
  enum pe_status status = find_rows(ring, refs, count, places, fault);
  if (status != PE_OK) goto done;
  struct copy copy = {ring, places, count, outputs};
  if (ring->file_count == 0) {
    copy_rows(&copy);
  } else {
    status = pe_mapped_verify_rows(ring, places, count, outputs, fault);
    if (status == PE_OK) status = pe_mapped_read(ring, copy_rows, &copy, fault);
    if (status != PE_OK) goto done;
  }
  for (uint32_t f = 0; f < ring->mutable_count; f++) {
    if (mutable_outputs[f] == NULL) continue;
    const size_t bytes = (size_t)ring->mutables[f].row_bytes;
    const uint8_t *values = ring->base + ring->mutables[f].offset;
    for (uint64_t i = 0; i < count; i++)
      memcpy(mutable_outputs[f] + i * bytes, values + places[i].position * bytes, bytes);
  }
done:
  if (places != stack) free(places);
  return status;
}

void pe_ring_ask_draws(struct pe_ring *ring, const struct pe_pcg64 *rng, uint64_t count,
                       bool verifies) {
  int64_t *refs = calloc((size_t)count + 1, sizeof *refs);
  struct pe_place *places = calloc((size_t)count + 1, sizeof *places);
  struct pe_fault fault;
  if (refs == NULL || places == NULL) goto done;
  pthread_mutex_lock(&ring->draw);
  const struct pe_pcg64 present = ring->rng;
  ring->rng = *rng;
  enum pe_status status = pe_ring_draw_valid(ring, count, refs);
  ring->rng = present;
  pthread_mutex_unlock(&ring->draw);
  if (status == PE_OK) status = find_rows(ring, refs, count, places, &fault);
  if (status == PE_OK && !verifies) pe_mapped_ask_rows(ring, places, count);
  /* What is damaged is met, and told, by whoever needs it. */
  if (status == PE_OK && verifies) (void)pe_mapped_verify_rows(ring, places, count, NULL, &fault);
done:
  free(refs);
  free(places);
}

enum pe_status pe_ring_update(struct pe_ring *ring, const int64_t *refs, uint64_t count,
                              const struct pe_source *values, uint64_t *lost,
                              struct pe_fault *fault) {
  const uint64_t lanes = ring->control->lanes;
  const uint64_t per_lane = ring->control->rows_per_lane;
  for (uint64_t i = 0; i < count; i++) {
    if (refs[i] < 0 || (uint64_t)refs[i] / lanes >= pe_lane_total(ring, (uint64_t)refs[i] % lanes)) {
      fault->row = refs[i];
      return PE_UNKNOWN_REF;
    }
  }
  const struct pe_source *given =
      ring->priorities == NULL ? NULL : &values[ring->priorities->rule.field];
  const bool is_priority_given = given != NULL && given->data != NULL;
  if (is_priority_given) {
    const enum pe_status status = pe_priorities_check(given->data, count, given->step_bytes, fault);
    if (status != PE_OK) return status;
  }
  const bool has_holes = pe_has_holes(ring);
  *lost = 0;
  for (uint64_t i = 0; i < count; i++) {
    const uint64_t lane = (uint64_t)refs[i] % lanes;
    const uint64_t id = (uint64_t)refs[i] / lanes;
    if (id < pe_lane_tail(ring, lane) || (has_holes && pe_row_is_hole(ring, lane, id))) {
      ++*lost;
      continue;
    }
    const uint64_t position = lane * per_lane + id % per_lane;
    for (uint32_t f = 0; f < ring->mutable_count; f++) {
      if (values[f].data == NULL) continue;
      const size_t bytes = (size_t)ring->mutables[f].row_bytes;
      memcpy(ring->base + ring->mutables[f].offset + position * bytes,
             values[f].data + i * values[f].step_bytes, bytes);
    }
  }
  ring->lost_updates += *lost;
  if (is_priority_given) pe_priorities_updated(ring, refs, count);
  return PE_OK;
}

static void assign_items(struct pe_ring *ring, uint32_t field, const struct pe_items *items,
                         const uint8_t *values, uint64_t value_step) {
  uint8_t *start = ring->base + ring->mutables[field].offset;
  const size_t bytes = (size_t)items->item_bytes;
  if (items->places == NULL && items->step == 1 && value_step == bytes) {
    /* The values may be a part of the field itself. */
    memmove(start + (uint64_t)items->first * bytes, values, bytes * items->count);
    return;
  }
  for (uint64_t i = 0; i < items->count; i++) {
    const int64_t item =
        items->places != NULL ? items->places[i] : items->first + (int64_t)i * items->step;
    memcpy(start + (uint64_t)item * bytes, values + i * value_step, bytes);
  }
}

enum pe_status pe_ring_assign(struct pe_ring *ring, uint32_t field, const struct pe_items *items,
                              const uint8_t *values, uint64_t value_step, struct pe_fault *fault) {
  const bool is_priority = ring->priorities != NULL && ring->priorities->rule.field == field;
  if (is_priority) {
    const enum pe_status status = pe_priorities_check(values, items->count, value_step, fault);
    if (status != PE_OK) return status;
  }
  /* Before: the values may be a part of the field itself. */
  if (is_priority) pe_priorities_assigned(ring, values, items->count, value_step);
  assign_items(ring, field, items, values, value_step);
  return PE_OK;
}

void pe_ring_refs_at(const struct pe_ring *ring, const int64_t *positions, uint64_t count,
                     int64_t *refs) {
  const uint64_t lanes = ring->control->lanes;
  const uint64_t per_lane = ring->control->rows_per_lane;
  const bool has_holes = pe_has_holes(ring);
  for (uint64_t i = 0; i < count; i++) {
    const uint64_t position = (uint64_t)positions[i];
    const uint64_t lane = position / per_lane;
    refs[i] = -1;
    if (positions[i] < 0 || lane >= lanes) continue;
    const uint64_t total = pe_lane_total(ring, lane);
    const uint64_t tail = pe_lane_tail(ring, lane);
    /* The newest row id below total that is congruent to the position. */
    const uint64_t slot = position % per_lane;
    if (slot >= total) continue;
    const uint64_t id = total - 1 - (total - 1 - slot) % per_lane;
    if (id < tail || (has_holes && pe_row_is_hole(ring, lane, id))) continue;
    refs[i] = (int64_t)(id * lanes + lane);
  }
}
