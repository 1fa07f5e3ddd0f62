"""The ring's native core for Python: converts buffers, releases the GIL, reports. See ring.pyi."""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t, uint64_t, uintptr_t

from control_block cimport (
    atomic_exchange_explicit, atomic_load_explicit, atomic_store_explicit, memory_order_acq_rel,
    memory_order_acquire, memory_order_release, pe_atomic, pe_file,
)
from ring_native cimport (
    PE_BUSY, PE_CLOSED, PE_EMPTY, PE_NO_SLOT, PE_OK, pe_dropped, pe_fault, pe_hash_bind,
    pe_hash_function, pe_ring_count_slots, pe_ring_drop, pe_ring_drop_holds, pe_ring_forget,
    pe_ring_hold, pe_ring_lock, pe_ring_lock_shared, pe_ring_map_pages, pe_ring_map_segment,
    pe_ring_open_segment,
    pe_ring_reserve_ahead, pe_ring_set_lane, pe_ring_spill_segment, pe_ring_unlock, pe_ring_verify,
    pe_status,
)

from pyengine._native.hashing import binding, function_address

pe_hash_bind(<pe_hash_function><uintptr_t>function_address(), binding() == "direct")

cdef uint64_t MAPPED_SLICE_BYTES = 512 * 1024

# Bits of a mark: see csrc/core/spans.h.
START, OPENING, VALID = 1, 2, 4

include "ring_faults.pxi"
include "ring_memory.pxi"
include "ring_append.pxi"
include "ring_read.pxi"
include "ring_priorities.pxi"
include "ring_spans.pxi"


cdef class RingCore(RingSpans):
    """What a ring does, a chapter a class; this one: slots, holds and restore."""

    @property
    def mapped_segments(self):
        return self._ring.file_count

    @property
    def asks_for_memory(self):
        return atomic_load_explicit(&self._ring.asks_for_memory, memory_order_acquire) != 0

    def allow_bytes(self, uint64_t count):
        atomic_store_explicit(&self._ring.may_take, count, memory_order_release)
        atomic_store_explicit(&self._ring.asks_for_memory, 0, memory_order_release)

    def reserve_ahead(self, uint64_t ahead):
        cdef pe_status status
        cdef pe_fault fault
        if self._dead or not self._open:
            return None
        with nogil:
            status = pe_ring_reserve_ahead(&self._ring, ahead, &fault)
        if status == PE_EMPTY or status == PE_CLOSED:
            return None
        _report(status, &fault)
        return status == PE_OK

    def slots(self):
        cdef uint64_t ready, reserved
        self._lock_shared()
        pe_ring_count_slots(&self._ring, &ready, &reserved)
        pe_ring_unlock(&self._ring)
        return ready, reserved

    def hold(self, words, size_t offset, uint64_t sequence):
        cdef Py_buffer view
        self._check()
        # Taken until the holds are dropped or the ring is closed, so that the words stay mapped
        # while C may look at them: whoever closes the mapping meanwhile is told that it is in use.
        for held in self._hold_views:
            if held.obj is words:
                break
        else:
            self._hold_views.append(memoryview(words))
        PyObject_GetBuffer(words, &view, PyBUF_WRITABLE)
        try:
            if offset % 8 or offset + 8 > <size_t>view.len:
                raise ValueError("the word leaves the buffer")
            if not pe_ring_hold(&self._ring, <pe_atomic *>(<uint8_t *>view.buf + offset), sequence):
                raise RuntimeError("too many pending snapshots hold the ring")
        finally:
            PyBuffer_Release(&view)

    def drop_holds(self):
        cdef pe_status status
        cdef list none = [], former
        if self._dead or not self._open:
            return
        with nogil:
            status = pe_ring_lock(&self._ring)
        if status == PE_CLOSED:
            return
        # Busy: this thread has frozen the ring, which keeps off the others as well.
        pe_ring_drop_holds(&self._ring)
        # Under the lock still: a hold that begins later keeps its own words.
        former, self._hold_views = self._hold_views, none
        if status == PE_OK:
            pe_ring_unlock(&self._ring)

    def take_retired(self):
        """Mapped files that left the window since the last call."""
        return atomic_exchange_explicit(&self._ring.retired_files, 0, memory_order_acq_rel)

    def set_lane(self, uint64_t lane, uint64_t tail, uint64_t total_count, bint break_pending):
        self._lock()
        pe_ring_set_lane(&self._ring, lane, tail, total_count, break_pending)
        pe_ring_unlock(&self._ring)

    def map_segment(self, uint64_t lane, uint64_t segment, size_t address, tuple record):
        cdef pe_file file
        (file.line, file.lane, file.first_row, file.row_count, file.sequence, file.checksum,
         file.file_bytes) = record
        self._lock()
        pe_ring_map_segment(&self._ring, lane, segment, <const uint8_t *>address, &file)
        pe_ring_unlock(&self._ring)

    def spill_segment(self, uint64_t lane, uint64_t segment, size_t address):
        cdef bint is_spilled
        self._check_segment(lane)
        self._lock()
        is_spilled = pe_ring_spill_segment(&self._ring, lane, segment, <const uint8_t *>address)
        pe_ring_unlock(&self._ring)
        return is_spilled

    def verify_blocks(self, uint64_t lane, uint64_t segment, uint64_t first, uint64_t end):
        """Verify blocks of a mapped segment that are not yet; BlockFault for the first bad one."""
        cdef pe_fault fault
        cdef pe_status status
        self._check_segment(lane)
        with nogil:
            status = pe_ring_lock_shared(&self._ring)
            if status == PE_OK:
                status = pe_ring_verify(&self._ring, lane, segment, first, end, &fault)
                pe_ring_unlock(&self._ring)
        _report(status, &fault)

    def map_pages(self, uint64_t lane, uint64_t segment):
        """In slices: an append waits for one at most."""
        cdef uint64_t offset, end
        cdef pe_status status = PE_OK
        self._check_segment(lane)
        end = (<const pe_segment_header *>self._ring.header_image).file_bytes
        for offset in range(0, end, MAPPED_SLICE_BYTES):
            with nogil:
                status = pe_ring_lock_shared(&self._ring)
                if status == PE_OK:
                    pe_ring_map_pages(&self._ring, lane, segment, offset, MAPPED_SLICE_BYTES)
                    pe_ring_unlock(&self._ring)
            _report(status, NULL)

    def forget_segment(self, uint64_t lane, uint64_t segment):
        self._check_segment(lane)
        self._lock()
        pe_ring_forget(&self._ring, lane, segment)
        pe_ring_unlock(&self._ring)

    def drop_rows(self, uint64_t lane, uint64_t first, uint64_t count):
        """Give up rows of the window; return how many were valid until now."""
        cdef uint64_t added = 0
        cdef pe_status status
        self._check_segment(lane)
        self._lock()
        status = pe_ring_drop(&self._ring, lane, first, count, &added)
        pe_ring_unlock(&self._ring)
        _report(status, NULL)
        return added

    @property
    def dropped_rows(self):
        return atomic_load_explicit(&self._ring.dropped_rows, memory_order_acquire)

    def dropped(self):
        """The runs of dropped rows, (lane, first row id, count); also inside `locked`."""
        cdef pe_status status
        cdef const pe_dropped *lane
        cdef uint64_t i, at
        cdef list runs = []
        self._check()
        if atomic_load_explicit(&self._ring.dropped_rows, memory_order_acquire) == 0:
            return runs
        with nogil:
            status = pe_ring_lock_shared(&self._ring)
        if status != PE_BUSY:  # else this thread has the lock
            _report(status, NULL)
        try:
            for i in range(self._lanes):
                lane = &self._ring.dropped[i]
                for at in range(lane.begin, lane.end):
                    runs.append((i, lane.runs[at].first, lane.runs[at].end - lane.runs[at].first))
        finally:
            if status == PE_OK:
                pe_ring_unlock(&self._ring)
        return runs

    cdef int _check_segment(self, uint64_t lane) except -1:
        self._check()
        if lane >= self._lanes:
            raise IndexError(f"lane {lane} of {self._lanes}")
        return 0

    def open_segment(self, uint64_t lane, uint64_t segment):
        """Open a slot; return the byte offset of its image in the arena, None: memory is asked for.
        """
        cdef uint8_t *image = NULL
        cdef pe_fault fault
        cdef pe_status status
        self._check()
        with nogil:
            status = pe_ring_lock(&self._ring)
            if status == PE_OK:
                status = pe_ring_open_segment(&self._ring, lane, segment, &image, &fault)
                pe_ring_unlock(&self._ring)
        _report(status, &fault)
        if status == PE_NO_SLOT:
            if self.asks_for_memory:
                return None
            raise RuntimeError("no free slot while the ring is being restored")
        return image - self._ring.base
