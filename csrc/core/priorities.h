/*
 * Rows drawn in proportion to their priorities (Schaul et al. 2016, "Prioritized Experience Replay",
 * arXiv:1511.05952).
 *
 * What is stored is one mutable field, p of each row (float32). The tree over positions is derived:
 * the leaf of a valid row is p ** alpha in float64, every other leaf is 0, so that no row outside
 * the window can be drawn. A row with p = 0 is none either.
 *
 * Appending does nothing here but note a higher p. Rows that came since the last draw are known by
 * their numbers alone, and a new row lies where the one was that it took the window's place from: the
 * next draw brings their leaves up to date, in one pass over positions that lie side by side; and
 * those of the oldest rows of stacks, whose frames may have left the window.
 *
 * The tree is changed under the exclusive lock, or under the shared one with the draw mutex.
 */
#ifndef PE_PRIORITIES_H
#define PE_PRIORITIES_H

#include "ring.h"
#include "sum_tree.h"

/* How priorities are kept; does not change. */
struct pe_priority_rule {
  uint32_t field; /* number of the mutable field */
  double alpha;   /* 0 to 1, so that a leaf is above 0 where p is */
  double epsilon; /* added to a given priority */
  bool is_stratified;
  bool is_by_batch; /* weights of 1 for the batch's least priority; else for the whole ring's */
};

struct pe_priorities {
  struct pe_priority_rule rule;
  float highest;  /* p of any row so far: what new rows get. Changed under exclusive lock and mutex */
  uint64_t draws; /* so far; under the draw mutex */
  struct pe_sum_tree tree;
  uint64_t *settled; /* per lane: rows before this one have their leaves; 0: look at all */
};

/* Give a ring that nobody else knows yet a tree of no rows. `priorities` is the caller's, zeroed but
 * for its rule, and stays where it is as long as the ring; pe_ring_free frees what hangs on it.
 * PE_OUT_OF_MEMORY. */
enum pe_status pe_priorities_open(struct pe_ring *ring, struct pe_priorities *priorities);
void pe_priorities_free(struct pe_priorities *priorities);

/* Turn given priorities into what is stored, (float)(given + epsilon). PE_BAD_PRIORITY, with its
 * index as fault.row, for one that is negative, infinite or NaN. */
enum pe_status pe_priorities_store(double epsilon, const float *given, uint64_t count,
                                   float *stored, struct pe_fault *fault);

/* Draw `count` refs with replacement, row i with probability leaf i / total; weights, in float32:
 * (least leaf / leaf) ** beta, which is (rows * probability) ** -beta over the largest such.
 * Stratified: draw i falls into the i-th of `count` equal parts of the total. PE_EMPTY,
 * PE_NO_PRIORITY. Draw mutex and shared lock held. */
enum pe_status pe_priorities_draw(struct pe_ring *ring, uint64_t count, double beta, int64_t *refs,
                                  float *weights);

/* Bring all leaves up to date. Exclusive lock, or draw mutex and shared lock, held. */
void pe_priorities_settle(struct pe_ring *ring);

/* What the ring calls, with its exclusive lock held, where there are priorities: before rows or
 * values of the field are stored (PE_BAD_PRIORITY), and after rows were added, updated or dropped,
 * or the field was assigned to.
 *
 * Rows that are added come with the priority that is given for them, to which epsilon is still to be
 * added, or with what stands at `highest`, which is taken from there. */
enum pe_status pe_priorities_check_rows(const struct pe_ring *ring, uint64_t lane_count,
                                        uint64_t steps, const struct pe_source *mutables,
                                        const uint8_t *mask, struct pe_fault *fault);
enum pe_status pe_priorities_check(const uint8_t *values, uint64_t count, uint64_t step_bytes,
                                   struct pe_fault *fault);
void pe_priorities_added(struct pe_ring *ring, uint64_t lane, uint64_t id, uint64_t count,
                         const struct pe_source *mutables);
void pe_priorities_updated(struct pe_ring *ring, const int64_t *refs, uint64_t count);
void pe_priorities_assigned(struct pe_ring *ring, const uint8_t *values, uint64_t count,
                            uint64_t step_bytes);
void pe_priorities_dropped(struct pe_ring *ring, uint64_t lane);

#endif
