/*
 * What spans rows: stacks of frames, returns over n steps, windows of sequences.
 *
 * A *mark* tells of a row what its neighbours have to know: its start flag, and whether it is valid.
 * Marks lie in private memory, by position, so that nothing that spans rows touches a mapped file to
 * find where it ends. A ring with stacks has them from the beginning, another one from the first
 * call on that asks; appends, drops and the tail keep them up.
 *
 * Stacks: a row keeps the newest frame of next_obs. The frames of obs are those of the `depth` rows
 * before it, of next_obs those up to it; before the first row of the sequence the oldest frame
 * repeats. A sequence begins with *opening rows*, which hold the first observation's frames and are
 * no transitions: never valid. A row whose frames reach before the tail, or into dropped rows, is not
 * valid either.
 */
#ifndef PE_SPANS_H
#define PE_SPANS_H

#include "mapped.h"

#define PE_MARK_START 1u   /* as in the start field: continues no row */
#define PE_MARK_OPENING 2u /* as in the start field: an opening row */
#define PE_MARK_VALID 4u   /* in the window, a transition, with all it needs */

/* The two stacks of a pair in caller memory, oldest frame first. */
struct pe_stack_source {
  struct pe_source obs;
  struct pe_source next_obs;
};

/* Memory of a ring with stacks; false where there is none. For pe_ring_open and pe_ring_free. */
bool pe_spans_open(struct pe_ring *ring);
void pe_spans_free(struct pe_ring *ring);

/* Read the start flags of all valid rows, blocks of mapped files verified first, and what the next
 * row of each lane may continue: after a restore, or where marks are first asked for. On a fault
 * everything is as it was. Exclusive lock held, as for the next two. */
enum pe_status pe_marks_build(struct pe_ring *ring, struct pe_fault *fault);

/* Mark rows that were just published, and what left the window by them. */
void pe_marks_append(struct pe_ring *ring, uint64_t lane, uint64_t id, uint64_t count);

/* Mark rows [first, end) as dropped, and those behind them that need their frames. */
void pe_marks_drop(struct pe_ring *ring, uint64_t lane, uint64_t first, uint64_t end);

/* As pe_ring_append, for a ring with stacks: one source more for each pair. `sources` of frame
 * fields give the newest frame of next_obs. Opens a sequence where a row does not continue the one
 * before it. PE_BROKEN_STACK, with nothing added, where next_obs does not follow obs. */
enum pe_status pe_ring_append_stacks(struct pe_ring *ring, uint64_t lane_begin, uint64_t lane_count,
                                     uint64_t steps, const struct pe_source *sources,
                                     const struct pe_source *mutables,
                                     const struct pe_stack_source *stacks, const uint8_t *mask,
                                     uint64_t *done, struct pe_fault *fault);

/* Outputs of a gather: append fields, mutable fields, and obs and next_obs of each pair; NULL for
 * those left out. */
struct pe_gather_targets {
  uint8_t *const *fields;
  uint8_t *const *mutables;
  uint8_t *const *stacks;
};

/* As pe_ring_gather, stacks rebuilt. Shared lock held, as for all that follows. */
enum pe_status pe_ring_gather_spans(struct pe_ring *ring, const int64_t *refs, uint64_t count,
                                    const struct pe_gather_targets *targets, struct pe_fault *fault);

/* Frames of one pair: of obs and of next_obs at rows of lanes; NULL for those left out. A row that
 * is not there yet has an obs. */
struct pe_spot {
  uint64_t lane;
  uint64_t row;
};
enum pe_status pe_stacks_gather(struct pe_ring *ring, const struct pe_stack *stack,
                                const struct pe_spot *spots, uint64_t count, uint8_t *obs,
                                uint8_t *next_obs, struct pe_fault *fault);

/* As pe_ring_draw, for a ring where rows of the window may not be valid. Draw mutex held too. */
enum pe_status pe_ring_draw_valid(struct pe_ring *ring, uint64_t count, int64_t *refs);

/* How far up to `most` steps from each ref go: `steps` rows, the last one at `lasts`. They end with
 * the sequence or the newest row. Marks are there, as for all that follows. */
void pe_steps_find(const struct pe_ring *ring, const int64_t *refs, uint64_t count, uint64_t most,
                   int64_t *lasts, int64_t *steps);

/* returns[i] = r[0] + g r[1] + g^2 r[2] + ... over the `steps[i]` rows from refs[i], element by
 * element, and discounts[i] = g^steps[i]. In double, in this order: the sum grows by (g^k) * r[k],
 * g^k = g^(k-1) * g, each product and sum rounded; rounded to the field's float at the end. */
struct pe_steps {
  const int64_t *refs;
  const int64_t *steps;
  uint64_t count;
  uint32_t field; /* of float32 or float64 */
  bool is_double;
  double gamma;
};
enum pe_status pe_steps_sum(struct pe_ring *ring, const struct pe_steps *sum, uint8_t *returns,
                            float *discounts, struct pe_fault *fault);

/* Draw `count` windows of `length` rows of one sequence, each valid window alike, with replacement.
 * Row t of window i is refs[i * length + t]. `pad`: a sequence that is shorter is one window too, of
 * lengths[i] rows, the last of which repeats. PE_NO_WINDOW where there is none. Draw mutex held. */
enum pe_status pe_ring_draw_windows(struct pe_ring *ring, uint64_t count, uint64_t length, bool pad,
                                    int64_t *refs, int64_t *lengths);

static inline uint64_t pe_row_position(const struct pe_ring *ring, uint64_t lane, uint64_t row) {
  return lane * ring->control->rows_per_lane + row % ring->control->rows_per_lane;
}

static inline uint8_t pe_mark_of(const struct pe_ring *ring, uint64_t lane, uint64_t row) {
  return ring->marks[pe_row_position(ring, lane, row)];
}

/* Whether a row is valid and continues the one before it. */
static inline bool pe_row_continues(const struct pe_ring *ring, uint64_t lane, uint64_t row) {
  return (pe_mark_of(ring, lane, row) & (PE_MARK_VALID | PE_MARK_START)) == PE_MARK_VALID;
}

/* Where a row of the window lies. */
static inline struct pe_place pe_place_of(const struct pe_ring *ring, uint64_t lane, uint64_t row) {
  const uint64_t segment = row >> ring->segment_shift;
  return (struct pe_place){ring->images[pe_ring_index(ring, lane, segment)],
                           row & (ring->control->segment_rows - 1), lane, segment,
                           pe_row_position(ring, lane, row)};
}

#endif
