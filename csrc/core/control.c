#include "control.h"

#include <string.h>

#include "format.h"

#define MAX_BYTES (UINT64_C(1) << 50)

/* Reserve count * size bytes at a cache line; false where the sum leaves any sane arena. */
static bool place(uint64_t *cursor, uint64_t count, uint64_t size, uint64_t align,
                  uint64_t *offset) {
  if (size != 0 && count > MAX_BYTES / size) return false;
  *cursor = (*cursor + align - 1) / align * align;
  *offset = *cursor;
  *cursor += count * size;
  return *cursor <= MAX_BYTES;
}

bool pe_control_plan(struct pe_ring_control *control) {
  const uint64_t lanes = control->lanes;
  if (lanes == 0 || control->rows_per_lane == 0 || control->segment_rows == 0) return false;
  const uint64_t segments =
      (control->rows_per_lane + control->segment_rows - 1) / control->segment_rows;
  uint64_t length = 4;
  while (length < segments + 3) length *= 2;
  control->table_length = length;

  if (length > MAX_BYTES / lanes) return false;
  const uint64_t entries = lanes * length;
  uint64_t cursor = sizeof *control;
  if (!place(&cursor, lanes, sizeof(struct pe_lane), 64, &control->lanes_offset) ||
      !place(&cursor, entries, sizeof(struct pe_table_entry), 64, &control->table_offset) ||
      !place(&cursor, control->slot_count, sizeof(uint64_t), 64, &control->words_offset) ||
      !place(&cursor, control->slot_count, sizeof(struct pe_file), 64,
             &control->slot_files_offset) ||
      !place(&cursor, entries, control->blocks_per_segment * sizeof(uint32_t), 64,
             &control->verified_offset) ||
      !place(&cursor, control->mutable_bytes, 1, PE_PAGE_BYTES, &control->mutable_offset) ||
      !place(&cursor, control->slot_count, control->slot_bytes, PE_PAGE_BYTES,
             &control->slots_offset))
    return false;
  control->arena_bytes = (cursor + PE_PAGE_BYTES - 1) / PE_PAGE_BYTES * PE_PAGE_BYTES;
  return true;
}

bool pe_control_is_sound(const struct pe_ring_control *control, uint64_t bytes) {
  struct pe_ring_control planned;
  if (bytes < sizeof *control || memcmp(control->magic, PE_RING_MAGIC, 8) != 0 ||
      control->version != PE_RING_VERSION)
    return false;
  memcpy(&planned, control, sizeof planned);
  return pe_control_plan(&planned) &&
         memcmp(&planned, control, offsetof(struct pe_ring_control, line)) == 0 &&
         control->arena_bytes <= bytes;
}
