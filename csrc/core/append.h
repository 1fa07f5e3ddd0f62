/* Steps of an append, for the one of whole rows and the one of stacks. Exclusive lock held. */
#ifndef PE_APPEND_H
#define PE_APPEND_H

#include "spans.h"

/* What is to be appended: all lanes' values, and which of them count. */
struct pe_batch {
  uint64_t lane_begin;
  uint64_t lane_count;
  const struct pe_source *sources;
  const struct pe_source *mutables;
  const uint8_t *mask; /* steps x lane_count bytes, or NULL for all */
};

/* Open the segments that one step needs, before any row of it is added: of each lane that counts,
 * for a row and `openings[lane]` opening rows (NULL: none) in front of it. */
enum pe_status pe_append_open(struct pe_ring *ring, const struct pe_batch *batch, uint64_t step,
                              const uint32_t *openings, struct pe_fault *fault);

/* Append what counts of steps [step, step + count) of lane `l` of the batch: its open segment has
 * room. */
void pe_append_run(struct pe_ring *ring, const struct pe_batch *batch, uint64_t l, uint64_t step,
                   uint64_t count);

/* The open segment that the lane's next row goes into. */
uint8_t *pe_append_image(const struct pe_ring *ring, uint64_t lane);

/* Make rows visible that lie in the open segment behind the last one. */
void pe_append_publish(struct pe_ring *ring, uint64_t lane, uint64_t count);

#endif
