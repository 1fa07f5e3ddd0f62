#include "priorities.h"

#include "spans.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum pe_status pe_priorities_open(struct pe_ring *ring, struct pe_priorities *priorities) {
  const uint64_t lanes = ring->control->lanes;
  priorities->highest = 1; /* p of the first row, as in the paper */
  priorities->settled = calloc(lanes, sizeof *priorities->settled);
  if (priorities->settled == NULL ||
      !pe_sum_tree_open(&priorities->tree, lanes * ring->control->rows_per_lane)) {
    pe_priorities_free(priorities);
    return PE_OUT_OF_MEMORY;
  }
  ring->priorities = priorities;
  return PE_OK;
}

void pe_priorities_free(struct pe_priorities *priorities) {
  pe_sum_tree_free(&priorities->tree);
  free(priorities->settled);
  priorities->settled = NULL;
}

static bool is_priority(float value) { return value >= 0 && value <= FLT_MAX; }

static float add_epsilon(float given, double epsilon) {
  return (float)((double)given + epsilon);
}

enum pe_status pe_priorities_store(double epsilon, const float *given, uint64_t count,
                                   float *stored, struct pe_fault *fault) {
  for (uint64_t i = 0; i < count; i++) {
    stored[i] = add_epsilon(given[i], epsilon);
    if (!is_priority(given[i]) || !is_priority(stored[i])) {
      fault->row = (int64_t)i;
      return PE_BAD_PRIORITY;
    }
  }
  return PE_OK;
}

enum pe_status pe_priorities_check(const uint8_t *values, uint64_t count, uint64_t step_bytes,
                                   struct pe_fault *fault) {
  for (uint64_t i = 0; i < count; i++) {
    float value;
    memcpy(&value, values + i * step_bytes, sizeof value);
    if (!is_priority(value)) {
      fault->row = (int64_t)i;
      return PE_BAD_PRIORITY;
    }
  }
  return PE_OK;
}

/* Let new rows get at least this. */
static void raise_highest(struct pe_ring *ring, float priority) {
  if (priority <= ring->priorities->highest) return;
  pthread_mutex_lock(&ring->draw); /* whoever reads it has one of the two */
  ring->priorities->highest = priority;
  pthread_mutex_unlock(&ring->draw);
}

static float *stored_priorities(const struct pe_ring *ring) {
  return (void *)(ring->base + ring->mutables[ring->priorities->rule.field].offset);
}

static bool are_given(const struct pe_priorities *priorities, const struct pe_source *mutables) {
  return mutables[priorities->rule.field].data != (const uint8_t *)&priorities->highest;
}

enum pe_status pe_priorities_check_rows(const struct pe_ring *ring, uint64_t lane_count,
                                        uint64_t steps, const struct pe_source *mutables,
                                        const uint8_t *mask, struct pe_fault *fault) {
  const struct pe_priorities *priorities = ring->priorities;
  const struct pe_source *source = &mutables[priorities->rule.field];
  if (!are_given(priorities, mutables)) return PE_OK;
  for (uint64_t row = 0; row < steps * lane_count; row++) {
    float given, stored;
    if (mask != NULL && !mask[row]) continue;
    memcpy(&given, source->data + row / lane_count * source->step_bytes +
                       row % lane_count * source->lane_bytes, sizeof given);
    if (pe_priorities_store(priorities->rule.epsilon, &given, 1, &stored, fault) != PE_OK) {
      fault->row = (int64_t)row;
      return PE_BAD_PRIORITY;
    }
  }
  return PE_OK;
}

void pe_priorities_added(struct pe_ring *ring, uint64_t lane, uint64_t id, uint64_t count,
                         const struct pe_source *mutables) {
  const struct pe_priorities *priorities = ring->priorities;
  if (!are_given(priorities, mutables)) return;
  const uint64_t per_lane = ring->control->rows_per_lane;
  float *stored = stored_priorities(ring) + lane * per_lane;
  float highest = 0;
  for (uint64_t i = 0, slot = id % per_lane; i < count; i++) {
    stored[slot] = add_epsilon(stored[slot], priorities->rule.epsilon);
    if (stored[slot] > highest) highest = stored[slot];
    if (++slot == per_lane) slot = 0;
  }
  raise_highest(ring, highest);
}

void pe_priorities_dropped(struct pe_ring *ring, uint64_t lane) {
  ring->priorities->settled[lane] = 0;
}

void pe_priorities_assigned(struct pe_ring *ring, const uint8_t *values, uint64_t count,
                            uint64_t step_bytes) {
  for (uint64_t lane = 0; lane < ring->control->lanes; lane++) ring->priorities->settled[lane] = 0;
  for (uint64_t i = 0; i < count; i++) {
    float value;
    memcpy(&value, values + i * step_bytes, sizeof value);
    raise_highest(ring, value);
  }
}

/* The leaves of many rows: new ones have one priority, so that the power is taken once. */
struct leaf_maker {
  double alpha;
  float priority;
  double leaf;
};

static double make_leaf(struct leaf_maker *maker, float priority) {
  if (priority != maker->priority) {
    maker->priority = priority;
    /* A file may hold anything, and NaN is no sum. */
    maker->leaf =
        priority > 0 && priority <= FLT_MAX ? pow((double)priority, maker->alpha) : 0;
  }
  return maker->leaf;
}

static void settle_rows(struct pe_ring *ring, uint64_t lane, uint64_t first, uint64_t end) {
  struct pe_priorities *priorities = ring->priorities;
  const uint64_t per_lane = ring->control->rows_per_lane;
  const bool has_holes = pe_has_holes(ring);
  const float *stored = stored_priorities(ring);
  double *leaves = priorities->tree.sums[0];
  struct leaf_maker maker = {priorities->rule.alpha, 0, 0};
  while (first < end) { /* twice where the rows go round the lane's end */
    const uint64_t slot = first % per_lane;
    const uint64_t room = per_lane - slot;
    const uint64_t count = end - first < room ? end - first : room;
    const uint64_t begin = lane * per_lane + slot;
    for (uint64_t i = 0; i < count; i++) {
      const bool is_hole = has_holes && pe_row_is_hole(ring, lane, first + i);
      leaves[begin + i] = is_hole ? 0 : make_leaf(&maker, stored[begin + i]);
    }
    pe_sum_tree_refresh(&priorities->tree, begin, begin + count);
    first += count;
  }
}

void pe_priorities_settle(struct pe_ring *ring) {
  uint64_t *settled = ring->priorities->settled;
  for (uint64_t lane = 0; lane < ring->control->lanes; lane++) {
    const uint64_t total = pe_lane_total(ring, lane);
    if (settled[lane] == total) continue;
    const uint64_t tail = pe_lane_tail(ring, lane);
    const uint64_t first = settled[lane] > tail ? settled[lane] : tail;
    const uint64_t reached = tail + ring->reach < first ? tail + ring->reach : first;
    settle_rows(ring, lane, tail, reached); /* their frames may have left the window since */
    settle_rows(ring, lane, first, total);
    settled[lane] = total;
  }
}

void pe_priorities_updated(struct pe_ring *ring, const int64_t *refs, uint64_t count) {
  struct pe_priorities *priorities = ring->priorities;
  const uint64_t lanes = ring->control->lanes;
  const uint64_t per_lane = ring->control->rows_per_lane;
  const bool has_holes = pe_has_holes(ring);
  const float *stored = stored_priorities(ring);
  double *leaves = priorities->tree.sums[0];
  struct leaf_maker maker = {priorities->rule.alpha, 0, 0};
  uint64_t places[PE_TREE_BATCH];
  float highest = 0;
  while (count > 0) {
    const uint64_t part = count < PE_TREE_BATCH ? count : PE_TREE_BATCH;
    uint32_t valid = 0;
    for (uint64_t i = 0; i < part; i++) {
      const uint64_t ref = (uint64_t)refs[i];
      const uint64_t lane = lanes == 1 ? 0 : ref % lanes;
      const uint64_t id = lanes == 1 ? ref : ref / lanes;
      if (id < pe_lane_tail(ring, lane)) continue;
      if (has_holes && pe_row_is_hole(ring, lane, id)) continue;
      places[valid] = lane * per_lane + id % per_lane;
      __builtin_prefetch(leaves + places[valid], 1);
      valid++;
    }
    for (uint32_t i = 0; i < valid; i++) {
      const float priority = stored[places[i]];
      if (priority > highest) highest = priority;
      leaves[places[i]] = make_leaf(&maker, priority);
    }
    pe_sum_tree_refresh_batch(&priorities->tree, places, valid);
    refs += part;
    count -= part;
  }
  raise_highest(ring, highest);
}

static bool has_rows(const struct pe_ring *ring) {
  if (ring->stack_count > 0)
    return atomic_load_explicit(&ring->valid_rows, memory_order_relaxed) > 0;
  for (uint64_t lane = 0; lane < ring->control->lanes; lane++)
    if (pe_lane_total(ring, lane) - pe_lane_tail(ring, lane) > pe_lane_dropped(ring, lane))
      return true;
  return false;
}

/* Uniform in [0, 1), in steps of 2 ** -53. */
static double draw_unit(struct pe_pcg64 *rng) {
  return (double)(pe_pcg64_next(rng) >> 11) * 0x1p-53;
}

enum pe_status pe_priorities_draw(struct pe_ring *ring, uint64_t count, double beta, int64_t *refs,
                                  float *weights) {
  struct pe_priorities *priorities = ring->priorities;
  const struct pe_sum_tree *tree = &priorities->tree;
  const bool is_stratified = priorities->rule.is_stratified;
  pe_priorities_settle(ring);
  const double total = pe_sum_tree_total(tree);
  if (!(total > 0)) return has_rows(ring) ? PE_NO_PRIORITY : PE_EMPTY;
  priorities->draws++;
  double least = priorities->rule.is_by_batch ? HUGE_VAL : pe_sum_tree_lowest(tree);
  for (uint64_t begin = 0; begin < count; begin += PE_TREE_BATCH) {
    double targets[PE_TREE_BATCH];
    uint64_t places[PE_TREE_BATCH];
    const uint64_t rest = count - begin;
    const uint32_t part = rest < PE_TREE_BATCH ? (uint32_t)rest : PE_TREE_BATCH;
    for (uint32_t i = 0; i < part; i++) {
      const double unit = draw_unit(&ring->rng);
      targets[i] = is_stratified ? ((double)(begin + i) + unit) / (double)count * total
                                 : unit * total;
    }
    pe_sum_tree_find(tree, targets, part, places);
    pe_ring_refs_at(ring, (const int64_t *)places, part, refs + begin);
    for (uint32_t i = 0; i < part; i++) {
      const double leaf = tree->sums[0][places[i]];
      if (priorities->rule.is_by_batch)
        least = leaf < least ? leaf : least;
      else
        weights[begin + i] = (float)pow(least / leaf, beta);
    }
  }
  if (!priorities->rule.is_by_batch) return PE_OK;
  const uint64_t lanes = ring->control->lanes;
  const uint64_t per_lane = ring->control->rows_per_lane;
  for (uint64_t i = 0; i < count; i++) {
    const uint64_t ref = (uint64_t)refs[i];
    const double leaf = tree->sums[0][ref % lanes * per_lane + ref / lanes % per_lane];
    weights[i] = (float)pow(least / leaf, beta);
  }
  return PE_OK;
}
