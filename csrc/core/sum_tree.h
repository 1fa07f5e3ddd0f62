/*
 * A sum tree of float64 leaves: totals, the smallest leaf, and which leaf a prefix sum ends in.
 *
 * It is the binary tree whose inner nodes are left + right, over as many leaves as there are and
 * zeros up to the next power of eight. Of every three levels one is stored: a node's eight
 * descendants there are one cache line, and the levels between are summed when they are needed, by
 * the same additions. A node is only ever computed from its children, never by adding differences:
 * trees with equal leaves are equal in every bit, however they came to them.
 *
 * Leaves are finite and at least 0. A leaf of 0 is none: it has no part in the minimum and is never
 * found. No locks, no ring: the caller writes leaves and says which.
 */
#ifndef PE_SUM_TREE_H
#define PE_SUM_TREE_H

#include <stdbool.h>
#include <stdint.h>

#define PE_TREE_FANOUT 8u
#define PE_TREE_LEVELS 22u /* 8^21 leaves, more than an arena has rows */

struct pe_sum_tree {
  uint64_t capacity;
  uint32_t height;               /* level `height` is the root alone */
  uint64_t widths[PE_TREE_LEVELS]; /* nodes of a level that stand above leaves */
  double *sums[PE_TREE_LEVELS];  /* level 0: the leaves */
  double *lows[PE_TREE_LEVELS];  /* smallest leaf below that is not 0, or 0; level 0: the leaves */
  void *memory;
};

/* Allocate a tree of zeros; false where there is no memory. Untouched parts take none. */
bool pe_sum_tree_open(struct pe_sum_tree *tree, uint64_t capacity);
void pe_sum_tree_free(struct pe_sum_tree *tree);

/* Bring the nodes above leaves [first, end) up to date, each once. */
void pe_sum_tree_refresh(struct pe_sum_tree *tree, uint64_t first, uint64_t end);

#define PE_TREE_BATCH 256u

/* The same for up to PE_TREE_BATCH leaves anywhere, in any order; twice is no harm. */
void pe_sum_tree_refresh_batch(struct pe_sum_tree *tree, const uint64_t *leaves, uint32_t count);

/* For each of up to PE_TREE_BATCH targets from 0 on, the first leaf whose sum with all before it is
 * above the target. Where rounding has a target at or beyond the total, the last leaf that is not 0. At least one is
 * not 0. Targets are overwritten. */
void pe_sum_tree_find(const struct pe_sum_tree *tree, double *targets, uint32_t count,
                      uint64_t *leaves);

static inline double pe_sum_tree_total(const struct pe_sum_tree *tree) {
  return tree->sums[tree->height][0];
}

static inline double pe_sum_tree_lowest(const struct pe_sum_tree *tree) {
  return tree->lows[tree->height][0];
}

#endif
