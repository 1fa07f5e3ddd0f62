#include "control.h"

#include <string.h>

#include "format.h"

#define MAX_BYTES (UINT64_C(1) << 50)

/* An entry's file, word by word: the order comes from the words around it. */
static void load_file(const struct pe_table_entry *entry, struct pe_file *file) {
  uint64_t words[PE_FILE_WORDS];
  for (size_t i = 0; i < PE_FILE_WORDS; i++)
    words[i] = atomic_load_explicit(&entry->file[i], memory_order_relaxed);
  memcpy(file, words, sizeof words);
}

static void store_file(struct pe_table_entry *entry, const struct pe_file *file) {
  uint64_t words[PE_FILE_WORDS];
  memcpy(words, file, sizeof words);
  for (size_t i = 0; i < PE_FILE_WORDS; i++)
    atomic_store_explicit(&entry->file[i], words[i], memory_order_relaxed);
}

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
  const uint64_t rows = control->segment_rows;
  /* Bounded before they are used: a loop or a product below must neither run for ever nor wrap. */
  if (lanes == 0 || control->rows_per_lane == 0 || control->rows_per_lane > MAX_BYTES ||
      rows == 0 || rows > MAX_BYTES || (rows & (rows - 1)) != 0 ||
      control->slot_bytes % sizeof(uint64_t) != 0 ||
      control->blocks_per_segment > MAX_BYTES / sizeof(uint32_t))
    return false;
  const uint64_t segments = (control->rows_per_lane + rows - 1) / rows;
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

uint64_t pe_control_find(struct pe_ring_control *control, uint64_t lane, uint64_t segment,
                         struct pe_file *file) {
  struct pe_table_entry *entry = pe_control_entry(control, lane, segment);
  for (;;) {
    if (atomic_load_explicit(&entry->segment_plus_one, memory_order_acquire) != segment + 1)
      return PE_PLACE_NONE;
    const uint64_t place = atomic_load_explicit(&entry->place, memory_order_acquire);
    if (place == PE_PLACE_NONE) return PE_PLACE_NONE;
    if (place == PE_PLACE_FILE) {
      load_file(entry, file);
    } else if (place > control->slot_count) {
      return PE_PLACE_NONE; /* no place of this ring: the block is damaged */
    } else {
      const uint64_t word =
          atomic_load_explicit(pe_control_word(control, place - 1), memory_order_acquire);
      if (pe_word_tag(word) == segment * control->lanes + lane &&
          pe_word_state(word) != PE_SLOT_FREE)
        return place;
    }
    /* The trainer may have given the entry away between our looks, and to another file: place alone
     * would not tell. The fence keeps the copy above before the second look. */
    atomic_thread_fence(memory_order_acquire);
    if (atomic_load_explicit(&entry->place, memory_order_relaxed) == place &&
        atomic_load_explicit(&entry->segment_plus_one, memory_order_relaxed) == segment + 1)
      return place == PE_PLACE_FILE ? PE_PLACE_FILE : PE_PLACE_NONE;
  }
}

void pe_control_set_file(struct pe_table_entry *entry, const struct pe_file *file) {
  /* The record is written after the words that say that the former one is void. */
  atomic_thread_fence(memory_order_release);
  store_file(entry, file);
  atomic_store_explicit(&entry->place, PE_PLACE_FILE, memory_order_release);
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
