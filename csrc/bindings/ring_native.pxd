"""The C side of a ring (csrc/core/ring.h), for the bindings."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from control_block cimport pe_atomic, pe_file, pe_ring_control

cdef extern from "hash.h" nogil:
    ctypedef uint64_t (*pe_hash_function)(const void *data, size_t bytes) noexcept
    void pe_hash_bind(pe_hash_function function, bint is_native)

cdef extern from "format.h" nogil:
    struct pe_segment_header:
        uint32_t header_bytes
        uint32_t field_count
        uint64_t file_bytes
        uint64_t block_count
    struct pe_field_record:
        uint32_t dimensions
        uint64_t shape[8]
        uint64_t row_bytes
        uint64_t offset
    const pe_field_record *pe_segment_fields(const pe_segment_header *header)

cdef extern from "pcg64.h" nogil:
    struct pe_pcg64:
        uint64_t state_high, state_low, inc_high, inc_low

cdef extern from "sum_tree.h" nogil:
    struct pe_sum_tree:
        uint32_t height
        uint64_t widths[22]
        double *sums[22]
        double *lows[22]

cdef extern from "priorities.h" nogil:
    struct pe_priority_rule:
        uint32_t field
        double alpha, epsilon
        bint is_stratified, is_by_batch
    struct pe_priorities:
        pe_priority_rule rule
        float highest
        uint64_t draws
        pe_sum_tree tree

cdef extern from "ring.h" nogil:
    enum pe_status:
        PE_OK, PE_NO_SLOT, PE_NO_MEMORY, PE_BUSY, PE_UNKNOWN_REF, PE_EMPTY, PE_DAMAGED
        PE_UNREADABLE, PE_OUT_OF_MEMORY, PE_CLOSED, PE_DROPPED, PE_BAD_PRIORITY, PE_NO_PRIORITY
        PE_BROKEN_STACK, PE_NO_WINDOW
    struct pe_fault:
        int64_t row
        uint64_t lane, segment, offset, block, expected, got
    struct pe_source:
        const uint8_t *data
        uint64_t step_bytes, lane_bytes
    struct pe_items:
        const int64_t *places
        int64_t first, step
        uint64_t count, item_bytes
    struct pe_mutable_field:
        uint64_t row_bytes, offset
    struct pe_dropped_run:
        uint64_t first, end
    struct pe_dropped:
        pe_dropped_run *runs
        uint64_t begin, end
    struct pe_stack:
        uint32_t field, depth
    struct pthread_mutex_t:
        pass
    struct pe_ring:
        pe_ring_control *control
        uint8_t *base
        int arena_fd
        int seal_event
        uint32_t field_count, mutable_count, end_count
        const uint8_t *header_image
        uint64_t header_bytes
        const pe_field_record *fields
        const pe_mutable_field *mutables
        const uint32_t *end_fields
        uint64_t file_count, lost_updates
        pe_atomic retired_files
        pe_dropped *dropped
        pe_atomic dropped_rows
        const pe_stack *stacks
        uint32_t stack_count
        uint8_t *marks
        pe_atomic valid_rows
        pe_atomic may_take
        pe_atomic asks_for_memory
        pe_pcg64 rng
        pe_priorities *priorities
        pthread_mutex_t draw
    int pthread_mutex_lock(pthread_mutex_t *mutex)
    int pthread_mutex_unlock(pthread_mutex_t *mutex)
    pe_status pe_ring_open(pe_ring *ring)
    pe_status pe_ring_close(pe_ring *ring)
    void pe_ring_free(pe_ring *ring)
    pe_status pe_ring_lock(pe_ring *ring)
    pe_status pe_ring_lock_shared(pe_ring *ring)
    bint pe_ring_try_lock(pe_ring *ring)
    bint pe_ring_try_lock_shared(pe_ring *ring)
    void pe_ring_unlock(pe_ring *ring)
    pe_status pe_ring_append(pe_ring *ring, uint64_t lane_begin, uint64_t lane_count,
                             uint64_t steps, const pe_source *sources, const pe_source *mutables,
                             const uint8_t *mask, uint64_t *done, pe_fault *fault)
    pe_status pe_ring_reserve_ahead(pe_ring *ring, uint64_t ahead, pe_fault *fault)
    void pe_ring_break(pe_ring *ring, uint64_t lane_begin, uint64_t lane_count)
    pe_status pe_ring_assign(pe_ring *ring, uint32_t field, const pe_items *items,
                             const uint8_t *values, uint64_t value_step, pe_fault *fault)
    bint pe_ring_hold(pe_ring *ring, pe_atomic *word, uint64_t sequence)
    void pe_ring_drop_holds(pe_ring *ring)
    pe_status pe_ring_update(pe_ring *ring, const int64_t *refs, uint64_t count,
                             const pe_source *values, uint64_t *lost, pe_fault *fault)
    void pe_ring_refs_at(const pe_ring *ring, const int64_t *positions, uint64_t count,
                         int64_t *refs)
    void pe_ring_ask_draws(pe_ring *ring, const pe_pcg64 *rng, uint64_t count, bint verifies)
    pe_status pe_ring_verify(pe_ring *ring, uint64_t lane, uint64_t segment, uint64_t first,
                             uint64_t end, pe_fault *fault)
    void pe_ring_map_pages(pe_ring *ring, uint64_t lane, uint64_t segment, uint64_t offset,
                           uint64_t bytes)
    void pe_ring_forget(pe_ring *ring, uint64_t lane, uint64_t segment)
    pe_status pe_ring_drop(pe_ring *ring, uint64_t lane, uint64_t first, uint64_t count,
                           uint64_t *added)
    void pe_ring_set_lane(pe_ring *ring, uint64_t lane, uint64_t tail, uint64_t total_count,
                          bint break_pending)
    void pe_ring_map_segment(pe_ring *ring, uint64_t lane, uint64_t segment, const uint8_t *image,
                             const pe_file *file)
    pe_status pe_ring_open_segment(pe_ring *ring, uint64_t lane, uint64_t segment, uint8_t **image,
                                   pe_fault *fault)
    bint pe_ring_spill_segment(pe_ring *ring, uint64_t lane, uint64_t segment,
                               const uint8_t *image)
    void pe_ring_count_slots(const pe_ring *ring, uint64_t *ready, uint64_t *reserved)

cdef extern from "priorities.h" nogil:
    pe_status pe_priorities_open(pe_ring *ring, pe_priorities *priorities)
    pe_status pe_priorities_store(double epsilon, const float *given, uint64_t count,
                                  float *stored, pe_fault *fault)
    pe_status pe_priorities_draw(pe_ring *ring, uint64_t count, double beta, int64_t *refs,
                                 float *weights)
    void pe_priorities_settle(pe_ring *ring)

cdef extern from "spans.h" nogil:
    struct pe_stack_source:
        pe_source obs, next_obs
    struct pe_gather_targets:
        uint8_t **fields
        uint8_t **mutables
        uint8_t **stacks
    struct pe_steps:
        const int64_t *refs
        const int64_t *steps
        uint64_t count
        uint32_t field
        bint is_double
        double gamma
    pe_status pe_marks_build(pe_ring *ring, pe_fault *fault)
    pe_status pe_ring_append_stacks(pe_ring *ring, uint64_t lane_begin, uint64_t lane_count,
                                    uint64_t steps, const pe_source *sources,
                                    const pe_source *mutables, const pe_stack_source *stacks,
                                    const uint8_t *mask, uint64_t *done, pe_fault *fault)
    pe_status pe_ring_gather_spans(pe_ring *ring, const int64_t *refs, uint64_t count,
                                   const pe_gather_targets *targets, pe_fault *fault)
    pe_status pe_ring_draw_valid(pe_ring *ring, uint64_t count, int64_t *refs)
    void pe_steps_find(const pe_ring *ring, const int64_t *refs, uint64_t count, uint64_t most,
                       int64_t *lasts, int64_t *steps)
    pe_status pe_steps_sum(pe_ring *ring, const pe_steps *sum, uint8_t *returns, float *discounts,
                           pe_fault *fault)
    pe_status pe_ring_draw_windows(pe_ring *ring, uint64_t count, uint64_t length, bint pad,
                                   int64_t *refs, int64_t *lengths)
    uint64_t pe_row_position(const pe_ring *ring, uint64_t lane, uint64_t row)
    uint64_t pe_lane_total(const pe_ring *ring, uint64_t lane)
    uint64_t pe_lane_tail(const pe_ring *ring, uint64_t lane)
