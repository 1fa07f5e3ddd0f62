/* XXH3-64 of blocks and images. The hash itself is bound at import: see hashing.pyx. */
#ifndef PE_HASH_H
#define PE_HASH_H

#include <stdbool.h>

#include "format.h"

typedef uint64_t (*pe_hash_function)(const void *data, size_t bytes);

/* Use `function` from now on, in this extension module. `is_native`: it calls no Python. */
void pe_hash_bind(pe_hash_function function, bool is_native);
bool pe_hash_is_native(void);

uint64_t pe_hash(const void *data, size_t bytes);

/* Find XXH3-64 in the shared object at `path`; NULL where it cannot be opened or has none. */
pe_hash_function pe_hash_find(const char *path);

/* Bytes of block `index` of `field`: a field's last block ends with its region. */
void pe_block_range(const struct pe_field_record *field, uint64_t index, uint64_t *offset,
                    uint64_t *bytes);

/* Whether an image's header keeps everything that the functions below touch within `bytes`. They
 * trust it; what it means is for the reader of the format to judge. */
bool pe_image_is_sound(const uint8_t *image, uint64_t bytes);

/* Hash every block of the image into its block table and the trailer; return the file checksum.
 * `scratch` holds header_bytes + 8 * block_count bytes. */
uint64_t pe_image_seal(uint8_t *image, uint8_t *scratch);

/* Index of the first block whose hash is not the one in the table, or -1. */
int64_t pe_image_verify(const uint8_t *image);

/* How many of `count` blocks that lie one behind the other have the hashes `expected`, up to the
 * first one that has not. */
uint64_t pe_blocks_verify(const uint8_t *data, const uint64_t *sizes, const uint64_t *expected,
                          uint64_t count);

#endif
