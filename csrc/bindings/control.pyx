"""Views of shared control blocks: atomic words, and the control block of a ring. See control.pyi."""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy, memset

from control_block cimport (
    PE_PLACE_FILE, PE_PLACE_NONE, PE_RING_MAGIC, PE_RING_VERSION,
    atomic_compare_exchange_strong_explicit, atomic_fetch_add_explicit, atomic_load_explicit,
    atomic_store_explicit, memory_order_acq_rel, memory_order_acquire, memory_order_release, pe_atomic, pe_atomic32, pe_control_find,
    pe_control_is_sound, pe_control_lane, pe_control_plan, pe_control_slot_file,
    pe_control_slot_offset, pe_control_verified, pe_control_word, pe_file, pe_lane,
    pe_ring_control, pe_verified_tag, pe_word, pe_word_state, pe_word_tag,
)

from pyengine.errors import ClosedError

cdef extern from *:
    """
    #define PE_STORE32(word, value) atomic_store_explicit(word, value, memory_order_release)
    #define PE_LOAD32(word) atomic_load_explicit(word, memory_order_acquire)
    """
    void PE_STORE32(pe_atomic32 *word, uint32_t value) nogil
    uint32_t PE_LOAD32(pe_atomic32 *word) nogil

cdef class Words:
    cdef Py_buffer _view
    cdef bint _held
    cdef pe_atomic *_words
    cdef readonly Py_ssize_t count

    def __cinit__(self, buffer, size_t offset, Py_ssize_t count):
        self._held = False
        PyObject_GetBuffer(buffer, &self._view, PyBUF_WRITABLE)
        self._held = True
        if offset % 8 or count < 0 or offset + 8 * <size_t>count > <size_t>self._view.len:
            raise ValueError("the words leave the buffer or are not aligned to 8 bytes")
        self._words = <pe_atomic *>(<char *>self._view.buf + offset)
        self.count = count

    def __dealloc__(self):
        if self._held:
            PyBuffer_Release(&self._view)

    def release(self):
        if self._held:
            self._held = False
            self._words = NULL
            self.count = 0
            PyBuffer_Release(&self._view)

    cdef pe_atomic *_at(self, Py_ssize_t index) except NULL:
        if not self._held:
            raise ClosedError("the control block was released")
        if index < 0 or index >= self.count:
            raise IndexError(f"word {index} of {self.count}")
        return self._words + index

    def load(self, Py_ssize_t index):
        return atomic_load_explicit(self._at(index), memory_order_acquire)

    def store(self, Py_ssize_t index, uint64_t value):
        atomic_store_explicit(self._at(index), value, memory_order_release)

    def compare_exchange(self, Py_ssize_t index, uint64_t expected, uint64_t desired):
        return atomic_compare_exchange_strong_explicit(
            self._at(index), &expected, desired, memory_order_acq_rel, memory_order_acquire)


cdef tuple _file_tuple(const pe_file *file):
    return (file.line, file.lane, file.first_row, file.row_count, file.sequence, file.checksum,
            file.file_bytes)


cdef class RingControl:
    cdef object _owner
    cdef Py_buffer _view
    cdef pe_ring_control *_control

    def __cinit__(self, buffer):
        self._control = NULL
        PyObject_GetBuffer(buffer, &self._view, PyBUF_WRITABLE)
        self._owner = buffer
        self._control = <pe_ring_control *>self._view.buf
        if not pe_control_is_sound(self._control, <uint64_t>self._view.len):
            PyBuffer_Release(&self._view)
            self._control = NULL
            raise ValueError("the buffer does not hold a ring's control block of this version")

    def __dealloc__(self):
        if self._control != NULL:
            PyBuffer_Release(&self._view)

    def release(self):
        if self._control != NULL:
            self._control = NULL
            self._owner = None
            PyBuffer_Release(&self._view)

    @staticmethod
    def plan_bytes(uint32_t lanes, uint64_t rows_per_lane, uint64_t segment_rows,
                   uint64_t slot_count, uint64_t slot_bytes, uint64_t blocks_per_segment,
                   uint64_t mutable_bytes):
        cdef pe_ring_control plan
        _fill(&plan, lanes, rows_per_lane, segment_rows, slot_count, slot_bytes,
              blocks_per_segment, mutable_bytes)
        return plan.arena_bytes, plan.mutable_offset, plan.slots_offset

    @staticmethod
    def create(buffer, uint32_t lanes, uint64_t rows_per_lane, uint64_t segment_rows,
               uint64_t slot_count, uint64_t slot_bytes, uint64_t blocks_per_segment,
               uint64_t mutable_bytes):
        cdef Py_buffer view
        cdef pe_ring_control plan
        cdef uint32_t lane
        _fill(&plan, lanes, rows_per_lane, segment_rows, slot_count, slot_bytes,
              blocks_per_segment, mutable_bytes)
        PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
        try:
            if <uint64_t>view.len < plan.arena_bytes:
                raise ValueError(f"the ring needs {plan.arena_bytes} bytes, got {view.len}")
            memcpy(view.buf, &plan, sizeof(plan))
            for lane in range(lanes):
                atomic_store_explicit(
                    &pe_control_lane(<pe_ring_control *>view.buf, lane).break_pending, 1,
                    memory_order_release)
        finally:
            PyBuffer_Release(&view)
        return RingControl(buffer)

    cdef pe_ring_control *_live(self) except NULL:
        if self._control == NULL:
            raise ClosedError("the control block was released")
        return self._control

    @property
    def lanes(self):
        return self._live().lanes

    @property
    def rows_per_lane(self):
        return self._live().rows_per_lane

    @property
    def segment_rows(self):
        return self._live().segment_rows

    @property
    def slot_count(self):
        return self._live().slot_count

    @property
    def mutable_bytes(self):
        return self._live().mutable_bytes

    @property
    def arena_bytes(self):
        return self._live().arena_bytes

    @property
    def table_length(self):
        return self._live().table_length

    @property
    def line(self):
        return atomic_load_explicit(&self._live().line, memory_order_acquire)

    @line.setter
    def line(self, uint64_t value):
        atomic_store_explicit(&self._live().line, value, memory_order_release)

    cdef pe_lane *_lane(self, uint64_t lane) except NULL:
        cdef pe_ring_control *control = self._live()
        if lane >= control.lanes:
            raise IndexError(f"lane {lane} of {control.lanes}")
        return pe_control_lane(control, lane)

    def tail(self, uint64_t lane):
        return atomic_load_explicit(&self._lane(lane).tail, memory_order_acquire)

    def total_count(self, uint64_t lane):
        return atomic_load_explicit(&self._lane(lane).total_count, memory_order_acquire)

    def break_pending(self, uint64_t lane):
        return atomic_load_explicit(&self._lane(lane).break_pending, memory_order_acquire) != 0

    cdef pe_atomic *_word(self, uint64_t slot) except NULL:
        cdef pe_ring_control *control = self._live()
        if slot >= control.slot_count:
            raise IndexError(f"slot {slot} of {control.slot_count}")
        return pe_control_word(control, slot)

    def slot_word(self, uint64_t slot):
        cdef uint64_t word = atomic_load_explicit(self._word(slot), memory_order_acquire)
        return pe_word_tag(word), <int>pe_word_state(word)

    def slots_in(self, int state):
        cdef pe_ring_control *control = self._live()
        cdef uint64_t slot, word
        cdef list found = []
        for slot in range(control.slot_count):
            word = atomic_load_explicit(pe_control_word(control, slot), memory_order_acquire)
            if <int>pe_word_state(word) == state:
                found.append((slot, pe_word_tag(word)))
        return found

    def move_slot(self, uint64_t slot, uint64_t key, int from_state, int to_state):
        cdef uint64_t expected = pe_word(key, from_state)
        return atomic_compare_exchange_strong_explicit(
            self._word(slot), &expected, pe_word(key, to_state), memory_order_acq_rel,
            memory_order_acquire)

    def slot_offset(self, uint64_t slot):
        self._word(slot)
        return pe_control_slot_offset(self._live(), slot)

    def set_slot_file(self, uint64_t slot, tuple record):
        cdef pe_file file
        self._word(slot)
        (file.line, file.lane, file.first_row, file.row_count, file.sequence, file.checksum,
         file.file_bytes) = record
        pe_control_slot_file(self._live(), slot)[0] = file

    def slot_file(self, uint64_t slot):
        self._word(slot)
        return _file_tuple(pe_control_slot_file(self._live(), slot))

    def place(self, uint64_t lane, uint64_t segment):
        cdef pe_file file
        cdef uint64_t where
        self._lane(lane)
        where = pe_control_find(self._live(), lane, segment, &file)
        if where == PE_PLACE_NONE:
            return None
        return _file_tuple(&file) if where == PE_PLACE_FILE else where - 1

    def next_file_sequence(self):
        return atomic_fetch_add_explicit(&self._live().next_file_sequence, 1, memory_order_acq_rel)

    @property
    def cold_reads(self):
        return atomic_load_explicit(&self._live().cold_reads, memory_order_acquire)

    def mark_verified(self, uint64_t lane, uint64_t segment, uint64_t first, uint64_t end):
        cdef pe_atomic32 *tags = self._tags(lane, segment, first, end)
        cdef uint64_t block
        for block in range(first, end):
            PE_STORE32(tags + block, pe_verified_tag(segment))

    def is_verified(self, uint64_t lane, uint64_t segment, uint64_t first, uint64_t end):
        cdef pe_atomic32 *tags = self._tags(lane, segment, first, end)
        cdef uint64_t block
        for block in range(first, end):
            if PE_LOAD32(tags + block) != pe_verified_tag(segment):
                return False
        return True

    cdef pe_atomic32 *_tags(self, uint64_t lane, uint64_t segment, uint64_t first,
                            uint64_t end) except NULL:
        self._lane(lane)
        if first > end or end > self._control.blocks_per_segment:
            raise IndexError(f"blocks {first} to {end} of {self._control.blocks_per_segment}")
        return pe_control_verified(self._control, lane, segment)


cdef int _fill(pe_ring_control *plan, uint32_t lanes, uint64_t rows_per_lane,
               uint64_t segment_rows, uint64_t slot_count, uint64_t slot_bytes,
               uint64_t blocks_per_segment, uint64_t mutable_bytes) except -1:
    memset(plan, 0, sizeof(pe_ring_control))
    memcpy(plan.magic, PE_RING_MAGIC, sizeof(plan.magic))
    plan.version = PE_RING_VERSION
    plan.lanes = lanes
    plan.rows_per_lane = rows_per_lane
    plan.segment_rows = segment_rows
    plan.slot_count = slot_count
    plan.slot_bytes = slot_bytes
    plan.blocks_per_segment = blocks_per_segment
    plan.mutable_bytes = mutable_bytes
    if not pe_control_plan(plan):
        raise ValueError("the ring does not fit an arena")
    return 0
