/*
 * Memory that batches are made in, used again: the first touch of new pages takes ten times as long
 * as the copies into them.
 *
 * A piece is private memory of one owner, from the take to the give. Pieces given back wait, newest
 * first, for the next take of the same size, and are let go when they have waited for PE_IDLE_TURNS
 * batches, when there are more than PE_IDLE_PIECES, or when they are more than PE_IDLE_BYTES.
 *
 * No lock: a caller holds Python's. A forked child has a copy of everything, as of any memory.
 */
#ifndef PE_OUTPUTS_H
#define PE_OUTPUTS_H

#include <stdbool.h>
#include <stdint.h>

#define PE_IDLE_PIECES 32u
#define PE_IDLE_BYTES ((uint64_t)256 * 1024 * 1024)
#define PE_IDLE_TURNS 64u
/* Pieces from here on are mappings of their own, with huge pages where the kernel has them. */
#define PE_MAPPED_BYTES ((uint64_t)2 * 1024 * 1024)
#define PE_OUTPUT_ALIGNMENT 64u

struct pe_piece {
  uint8_t *start;
  uint64_t bytes;
  uint64_t turn; /* when it was given back */
};

/* Zeroed: without any memory, ready to use. */
struct pe_outputs {
  struct pe_piece idle[PE_IDLE_PIECES]; /* oldest first */
  uint32_t idle_count;
  uint64_t idle_bytes;
  uint64_t live_bytes; /* taken and not given back */
  uint64_t turn;
  bool is_closed; /* nothing is kept any more */
};

/* Begin a batch: lets go of pieces that have waited long enough. */
void pe_outputs_turn(struct pe_outputs *outputs);

/* A piece of `bytes` (at least 1), aligned, with any content; NULL where memory ends. */
uint8_t *pe_outputs_take(struct pe_outputs *outputs, uint64_t bytes);

/* Give back what a take of so many bytes returned. */
void pe_outputs_give(struct pe_outputs *outputs, uint8_t *start, uint64_t bytes);

/* Let go of all idle pieces, and from now on of what is given back. A second call changes nothing. */
void pe_outputs_close(struct pe_outputs *outputs);

#endif
