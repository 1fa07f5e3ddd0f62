/*
 * The native readers, given bytes that anybody may have written. Each refuses them, names the damage,
 * or has the right values, and touches no other byte: a sanitizer looks on.
 */
#ifndef PE_TEST_READERS_H
#define PE_TEST_READERS_H

#include "world.h"

/* Read the image of a segment; return whether its header was taken for sound. */
bool read_image(uint8_t *image, uint64_t bytes);

/* Attach a control block and look around in it, by `random`; return whether it was sound. */
bool read_control(struct pe_ring_control *control, uint64_t bytes, uint64_t *random);

/* Gather from a ring whose segment 1 is this image, mapped from a file that was cut to `length`
 * afterwards; the file is on record as the right one, of `checksum`. Count what became of it in
 * `outcomes`: right rows, damage, unreadable. Of a world of one lane, which has no rows yet. */
void read_rows(struct world *world, const uint8_t *image, uint64_t checksum, uint64_t length,
               uint64_t outcomes[3]);

#endif
