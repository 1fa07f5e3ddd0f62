/*
 * The control block of a ring, at the start of its arena, shared by trainer and writer.
 *
 * Ownership: lanes and the segment table are written by the trainer alone, slot files by the writer
 * alone, slot words by both through compare-and-swap. FREE and OPEN words are left by the trainer
 * alone, so that its swaps from these cannot fail. A slot file is valid while the slot's word
 * says (key, PERSISTED); the trainer copies it into the table before it frees such a slot whose
 * file is still needed. Only the trainer frees slots, and never one that is OPEN.
 */
#ifndef PE_CONTROL_H
#define PE_CONTROL_H

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PE_RING_MAGIC "PERINGCB"
#define PE_RING_VERSION 1u
#define PE_PLACE_NONE 0u
#define PE_PLACE_FILE UINT64_MAX

enum pe_slot_state {
  PE_SLOT_FREE = 0,
  PE_SLOT_OPEN = 1,
  PE_SLOT_SEALED = 2,
  PE_SLOT_PERSISTING = 3,
  PE_SLOT_WRITTEN = 4,
  PE_SLOT_PERSISTED = 5,
};

enum pe_snapshot_state {
  PE_SNAPSHOT_NONE = 0,
  PE_SNAPSHOT_PENDING = 1,
  PE_SNAPSHOT_COMMITTING = 2,
  PE_SNAPSHOT_COMMITTED = 3,
  PE_SNAPSHOT_FAILED = 4,
  PE_SNAPSHOT_CANCELLED = 5,
};

/* A state word: tag (segment key or sequence) and state, moved together. */
static inline uint64_t pe_word(uint64_t tag, uint64_t state) { return tag << 8 | state; }
static inline uint64_t pe_word_tag(uint64_t word) { return word >> 8; }
static inline uint64_t pe_word_state(uint64_t word) { return word & 0xff; }

/* Swap a word if it still is `from`; whether it was. */
static inline bool pe_word_move(_Atomic uint64_t *word, uint64_t from, uint64_t to) {
  return atomic_compare_exchange_strong_explicit(word, &from, to, memory_order_acq_rel,
                                                 memory_order_acquire);
}

struct pe_lane {
  _Atomic uint64_t total_count; /* published after the rows' bytes */
  _Atomic uint64_t tail;
  _Atomic uint64_t break_pending; /* the next row starts a sequence */
  uint64_t reserved[5];
};
static_assert(sizeof(struct pe_lane) == 64, "one cache line a lane");

struct pe_file {
  uint64_t line;
  uint64_t lane;
  uint64_t first_row;
  uint64_t row_count;
  uint64_t sequence;
  uint64_t checksum;
  uint64_t file_bytes;
};

#define PE_FILE_WORDS 7
static_assert(sizeof(struct pe_file) == PE_FILE_WORDS * sizeof(uint64_t), "a file is 7 words");

struct pe_table_entry {
  _Atomic uint64_t segment_plus_one; /* 0: empty */
  _Atomic uint64_t place;            /* PE_PLACE_NONE, slot + 1, or PE_PLACE_FILE */
  /* A struct pe_file, valid with PE_PLACE_FILE; read while it may change, so each word is atomic. */
  _Atomic uint64_t file[PE_FILE_WORDS];
  uint64_t reserved[7];
};
static_assert(sizeof(struct pe_table_entry) == 128, "two cache lines an entry");

struct pe_ring_control {
  char magic[8];
  uint32_t version;
  uint32_t lanes;
  uint64_t rows_per_lane;
  uint64_t segment_rows;
  uint64_t slot_count;
  uint64_t slot_bytes;
  uint64_t table_length; /* entries per lane, a power of two */
  uint64_t blocks_per_segment;
  uint64_t mutable_bytes;
  uint64_t lanes_offset;
  uint64_t table_offset;
  uint64_t words_offset;
  uint64_t slot_files_offset;
  uint64_t verified_offset; /* uint32 tag per (lane, entry, block) */
  uint64_t mutable_offset;
  uint64_t slots_offset;
  uint64_t arena_bytes;
  _Atomic uint64_t line;
  _Atomic uint64_t next_file_sequence;
  _Atomic uint64_t cold_reads; /* blocks that gathers wait for; stays up where one dies */
  uint64_t reserved[12];
};
static_assert(sizeof(struct pe_ring_control) == 256, "ring control header is 256 bytes");

/* Fill in the offsets, table length and arena size from the counts; false on overflow. */
bool pe_control_plan(struct pe_ring_control *control);

/* Where a segment is: PE_PLACE_NONE, slot + 1, or PE_PLACE_FILE with `file` filled in. For either
 * process; what it returns was true at one instant. */
uint64_t pe_control_find(struct pe_ring_control *control, uint64_t lane, uint64_t segment,
                         struct pe_file *file);

/* Trainer: let an entry's segment live in a file, where place or segment_plus_one differ from what
 * they were with its former file. */
void pe_control_set_file(struct pe_table_entry *entry, const struct pe_file *file);

/* Whether a header read from shared memory has the offsets that its counts imply. */
bool pe_control_is_sound(const struct pe_ring_control *control, uint64_t bytes);

static inline struct pe_lane *pe_control_lane(struct pe_ring_control *control, uint64_t lane) {
  return (struct pe_lane *)(void *)((uint8_t *)control + control->lanes_offset) + lane;
}

static inline struct pe_table_entry *pe_control_entry(struct pe_ring_control *control,
                                                      uint64_t lane, uint64_t segment) {
  const uint64_t index = lane * control->table_length + (segment & (control->table_length - 1));
  return (struct pe_table_entry *)(void *)((uint8_t *)control + control->table_offset) + index;
}

static inline _Atomic uint64_t *pe_control_word(struct pe_ring_control *control, uint64_t slot) {
  return (_Atomic uint64_t *)(void *)((uint8_t *)control + control->words_offset) + slot;
}

static inline struct pe_file *pe_control_slot_file(struct pe_ring_control *control,
                                                   uint64_t slot) {
  return (struct pe_file *)(void *)((uint8_t *)control + control->slot_files_offset) + slot;
}

static inline uint64_t pe_control_slot_offset(const struct pe_ring_control *control,
                                              uint64_t slot) {
  return control->slots_offset + slot * control->slot_bytes;
}

/* The tags of a segment's blocks: a block is verified while its tag is pe_verified_tag(segment). */
static inline _Atomic uint32_t *pe_control_verified(struct pe_ring_control *control, uint64_t lane,
                                                    uint64_t segment) {
  const uint64_t index = lane * control->table_length + (segment & (control->table_length - 1));
  return (_Atomic uint32_t *)(void *)((uint8_t *)control + control->verified_offset) +
         index * control->blocks_per_segment;
}

static inline uint32_t pe_verified_tag(uint64_t segment) { return (uint32_t)(segment + 1); }

#endif
