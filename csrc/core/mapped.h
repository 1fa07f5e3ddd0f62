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

/* Verify every mapped block that rows of the fields with an output lie in. */
enum pe_status pe_mapped_verify_rows(struct pe_ring *ring, const struct pe_place *places,
                                     uint64_t count, uint8_t *const *outputs,
                                     struct pe_fault *fault);

#endif
