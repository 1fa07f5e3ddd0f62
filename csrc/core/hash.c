#include "hash.h"

#include <dlfcn.h>
#include <string.h>

static pe_hash_function bound;
static bool native;

void pe_hash_bind(pe_hash_function function, bool is_native) {
  bound = function;
  native = is_native;
}

bool pe_hash_is_native(void) { return native; }

uint64_t pe_hash(const void *data, size_t bytes) { return bound(data, bytes); }

pe_hash_function pe_hash_find(const char *path) {
  static const char *const names[] = {"XXH3_64bits_dispatch", "XXH3_64bits"};
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return NULL;
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    void *symbol = dlsym(library, names[i]);
    if (symbol != NULL) {
      /* POSIX lets an object pointer from dlsym become a function pointer; ISO C has no cast. */
      pe_hash_function function;
      memcpy(&function, &symbol, sizeof function);
      return function;
    }
  }
  return NULL;
}

void pe_block_range(const struct pe_field_record *field, uint64_t index, uint64_t *offset,
                    uint64_t *bytes) {
  const uint64_t step = field->row_bytes << field->block_shift;
  const uint64_t begin = index * step;
  const uint64_t end = index + 1 == field->block_count ? field->region_bytes : begin + step;
  *offset = field->offset + begin;
  *bytes = end - begin;
}

static bool field_is_sound(const struct pe_segment_header *header,
                           const struct pe_field_record *field) {
  const uint64_t rows_end = header->block_table_offset;
  if (field->offset < header->header_bytes || field->offset > rows_end ||
      field->region_bytes > rows_end - field->offset ||
      field->first_block > header->block_count ||
      field->block_count > header->block_count - field->first_block || field->block_shift >= 64)
    return false;
  if (field->block_count <= 1) return true;
  if (field->row_bytes > field->region_bytes >> field->block_shift) return false;
  const uint64_t step = field->row_bytes << field->block_shift;
  return step != 0 && field->block_count - 1 <= field->region_bytes / step;
}

bool pe_image_is_sound(const uint8_t *image, uint64_t bytes) {
  const struct pe_segment_header *header = (const void *)image;
  if (bytes < PE_PAGE_BYTES || header->file_bytes > bytes ||
      header->file_bytes < PE_PAGE_BYTES + PE_TRAILER_BYTES)
    return false;
  const uint64_t end = header->file_bytes - PE_TRAILER_BYTES;
  const uint64_t table = header->block_table_offset;
  if (header->header_bytes < sizeof *header || header->header_bytes > table || table > end ||
      table % sizeof(uint64_t) != 0 || header->block_count > (end - table) / sizeof(uint64_t) ||
      header->field_count >
          (header->header_bytes - sizeof *header) / sizeof(struct pe_field_record))
    return false;
  for (uint32_t f = 0; f < header->field_count; f++)
    if (!field_is_sound(header, &pe_segment_fields(header)[f])) return false;
  return true;
}

uint64_t pe_image_seal(uint8_t *image, uint8_t *scratch) {
  const struct pe_segment_header *header = (const void *)image;
  const struct pe_field_record *fields = pe_segment_fields(header);
  uint64_t *table = (uint64_t *)(void *)(image + header->block_table_offset);

  for (uint32_t f = 0; f < header->field_count; f++) {
    for (uint64_t b = 0; b < fields[f].block_count; b++) {
      uint64_t offset, bytes;
      pe_block_range(&fields[f], b, &offset, &bytes);
      table[fields[f].first_block + b] = pe_hash(image + offset, bytes);
    }
  }
  const size_t table_bytes =
      (size_t)(header->file_bytes - PE_TRAILER_BYTES - header->block_table_offset);
  memset((uint8_t *)(table + header->block_count), 0,
         table_bytes + PE_TRAILER_BYTES - 8 * (size_t)header->block_count);
  memcpy(scratch, image, header->header_bytes);
  memcpy(scratch + header->header_bytes, table, table_bytes);
  const uint64_t checksum = pe_hash(scratch, header->header_bytes + table_bytes);
  memcpy(image + header->file_bytes - PE_TRAILER_BYTES, &checksum, sizeof checksum);
  return checksum;
}

int64_t pe_image_verify(const uint8_t *image) {
  const struct pe_segment_header *header = (const void *)image;
  const struct pe_field_record *fields = pe_segment_fields(header);
  const uint64_t *table = (const uint64_t *)(const void *)(image + header->block_table_offset);

  for (uint32_t f = 0; f < header->field_count; f++) {
    for (uint64_t b = 0; b < fields[f].block_count; b++) {
      uint64_t offset, bytes;
      pe_block_range(&fields[f], b, &offset, &bytes);
      if (pe_hash(image + offset, bytes) != table[fields[f].first_block + b])
        return (int64_t)(fields[f].first_block + b);
    }
  }
  return -1;
}

uint64_t pe_blocks_verify(const uint8_t *data, const uint64_t *sizes, const uint64_t *expected,
                          uint64_t count) {
  for (uint64_t i = 0; i < count; i++) {
    if (pe_hash(data, sizes[i]) != expected[i]) return i;
    data += sizes[i];
  }
  return count;
}
