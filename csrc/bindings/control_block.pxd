"""The control block of csrc/core/control.h, for the bindings."""

from libc.stdint cimport uint32_t, uint64_t

cdef extern from "control.h" nogil:
    ctypedef uint64_t pe_atomic "_Atomic uint64_t"
    ctypedef uint32_t pe_atomic32 "_Atomic uint32_t"
    const char *PE_RING_MAGIC
    const uint32_t PE_RING_VERSION
    const uint64_t PE_PLACE_NONE
    const uint64_t PE_PLACE_FILE
    struct pe_lane:
        pe_atomic total_count
        pe_atomic tail
        pe_atomic break_pending
    struct pe_file:
        uint64_t line, lane, first_row, row_count, sequence, checksum, file_bytes
    struct pe_ring_control:
        char magic[8]
        uint32_t version
        uint32_t lanes
        uint64_t rows_per_lane, segment_rows, slot_count, slot_bytes, table_length
        uint64_t blocks_per_segment, mutable_bytes
        uint64_t mutable_offset, slots_offset, arena_bytes
        pe_atomic line
        pe_atomic next_file_sequence
        pe_atomic cold_reads
    bint pe_control_plan(pe_ring_control *control)
    bint pe_control_is_sound(const pe_ring_control *control, uint64_t bytes)
    uint64_t pe_control_find(pe_ring_control *control, uint64_t lane, uint64_t segment,
                             pe_file *file)
    pe_lane *pe_control_lane(pe_ring_control *control, uint64_t lane)
    pe_atomic *pe_control_word(pe_ring_control *control, uint64_t slot)
    pe_file *pe_control_slot_file(pe_ring_control *control, uint64_t slot)
    uint64_t pe_control_slot_offset(const pe_ring_control *control, uint64_t slot)
    pe_atomic32 *pe_control_verified(pe_ring_control *control, uint64_t lane, uint64_t segment)
    uint32_t pe_verified_tag(uint64_t segment)
    uint64_t pe_word(uint64_t tag, uint64_t state)
    uint64_t pe_word_tag(uint64_t word)
    uint64_t pe_word_state(uint64_t word)

cdef extern from "<stdatomic.h>" nogil:
    ctypedef int memory_order
    memory_order memory_order_acquire, memory_order_release, memory_order_acq_rel
    uint64_t atomic_load_explicit(pe_atomic *word, memory_order order)
    void atomic_store_explicit(pe_atomic *word, uint64_t value, memory_order order)
    uint64_t atomic_exchange_explicit(pe_atomic *word, uint64_t value, memory_order order)
    uint64_t atomic_fetch_add_explicit(pe_atomic *word, uint64_t value, memory_order order)
    bint atomic_compare_exchange_strong_explicit(
        pe_atomic *word, uint64_t *expected, uint64_t desired, memory_order success,
        memory_order failure)

