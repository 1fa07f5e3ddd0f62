/* Rows that lie in mapped files: verified at the first touch, read under a guard. */
#ifndef PE_MAPPED_H
#define PE_MAPPED_H

#include "ring.h"

/* A row found: its image, its number in the segment, and the table index it came from. */
struct pe_place {
  const uint8_t *image;
  uint64_t row;
  uint64_t lane;
  uint64_t segment;
  uint64_t position;
};

/* Run a reader of mapped files (see guard.h for what it may do); PE_UNREADABLE, with the place,
 * where it met a page that cannot be had. Shared lock held, as for the other. */
enum pe_status pe_mapped_read(struct pe_ring *ring, void (*body)(void *context), void *context,
                              struct pe_fault *fault);

/* Whether reads of this thread have had to wait for the disk, so that the next one asks first: for
 * no rows, for all, or for most, all but one of PE_ASK_LEFT_OUT, so that it sees whether rows still
 * wait without waiting for all of them. */
enum pe_asking { PE_ASK_NOTHING, PE_ASK_MOST, PE_ASK_ALL };
enum pe_asking pe_mapped_asks(void);

#define PE_ASK_LEFT_OUT 32

/* Block `index` of a field of a segment that lives in a mapped file. */
struct pe_block {
  const uint8_t *image;
  const struct pe_field_record *field;
  uint64_t lane;
  uint64_t segment;
  uint64_t index;
};

bool pe_block_is_verified(const struct pe_ring *ring, const struct pe_block *block);

/* Wait for the block's pages, hash them, and mark it as verified; PE_DAMAGED, PE_UNREADABLE. */
enum pe_status pe_block_verify(struct pe_ring *ring, const struct pe_block *block,
                               struct pe_fault *fault);

/* Verify every mapped block that rows of the fields with an output lie in (without outputs: of all
 * fields); the reads of those that
 * nobody has verified yet overlap (cold.c). */
enum pe_status pe_mapped_verify_rows(struct pe_ring *ring, const struct pe_place *places,
                                     uint64_t count, uint8_t *const *outputs,
                                     struct pe_fault *fault);

/* Start reading the blocks that the rows lie in, of all fields, up to what one disk reads in a
 * moment. A hint: it waits for nothing and cannot fail. */
void pe_mapped_ask_rows(struct pe_ring *ring, const struct pe_place *places, uint64_t count);

#endif
