/*
 * On-disk records of segment files and parts. The page is pyengine/format/FORMAT.md, a test holds
 * it, this header and pyengine/format/segment.py together. Little-endian, no implicit padding.
 */
#ifndef PE_FORMAT_H
#define PE_FORMAT_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "pyengine's files are little-endian images of memory; this machine is big-endian"
#endif

#define PE_SEGMENT_MAGIC "PESEGMNT"
#define PE_SEGMENT_VERSION 1u
#define PE_KIND_SEGMENT 1u
#define PE_KIND_PART 2u
#define PE_PAGE_BYTES 4096u
#define PE_TRAILER_BYTES 8u
#define PE_MAX_DIMENSIONS 8
#define PE_NAME_BYTES 64

struct pe_segment_header {
  char magic[8];
  uint32_t version;
  uint32_t header_bytes;
  uint64_t line;
  uint64_t file_bytes;
  uint64_t row_capacity;
  uint64_t row_count;
  uint32_t kind;
  uint32_t field_count;
  uint32_t run_count;
  uint32_t run_capacity;
  uint64_t block_table_offset;
  uint64_t block_count;
  uint8_t reserved[48];
};
static_assert(sizeof(struct pe_segment_header) == 128, "segment header is 128 bytes");
static_assert(offsetof(struct pe_segment_header, row_count) == 40, "row_count stands at 40");
static_assert(offsetof(struct pe_segment_header, block_count) == 72, "block_count stands at 72");

struct pe_field_record {
  char name[PE_NAME_BYTES];
  uint32_t dtype;
  uint32_t dimensions;
  uint64_t shape[PE_MAX_DIMENSIONS];
  uint64_t row_bytes;
  uint64_t offset;
  uint64_t region_bytes;
  uint64_t first_block;
  uint64_t block_count;
  uint32_t block_shift;
  uint32_t reserved0;
  uint64_t reserved1;
};
static_assert(sizeof(struct pe_field_record) == 192, "field record is 192 bytes");
static_assert(offsetof(struct pe_field_record, row_bytes) == 136, "row_bytes stands at 136");
static_assert(offsetof(struct pe_field_record, block_shift) == 176, "block_shift stands at 176");

struct pe_run_record {
  uint32_t lane;
  uint32_t reserved;
  uint64_t first_row;
  uint64_t row_count;
};
static_assert(sizeof(struct pe_run_record) == 24, "run record is 24 bytes");

/* The records of an image, found from its first byte. */
static inline const struct pe_field_record *pe_segment_fields(const struct pe_segment_header *header) {
  return (const struct pe_field_record *)(const void *)(header + 1);
}

static inline struct pe_run_record *pe_segment_runs(struct pe_segment_header *header) {
  uint8_t *fields = (uint8_t *)(header + 1);
  return (struct pe_run_record *)(void *)(fields +
                                          header->field_count * sizeof(struct pe_field_record));
}

#endif
