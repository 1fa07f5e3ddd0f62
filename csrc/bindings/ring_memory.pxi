# Lifetime and lock of a ring: who holds the arena, and until when C may touch it.
#
# The arena's buffer and the C tables go at close(), which waits until no call is inside. What runs
# before a call has its lock may touch only what lives as long as the object: the header image, the
# numbers of fields and lanes.

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from control_block cimport pe_ring_control
from ring_native cimport (
    PE_OK, pe_mutable_field, pe_priorities, pe_ring, pe_ring_close, pe_ring_free, pe_ring_lock,
    pe_ring_lock_shared, pe_ring_open, pe_ring_unlock, pe_segment_fields, pe_segment_header,
    pe_stack, pe_status,
)

from pyengine.errors import ClosedError, ForkedProcessError


cdef struct given_field:
    # A field as callers give and take it, appends before mutables. `target`: its place among all
    # outputs and sources, which are the append fields with the start field, the mutable fields, and
    # obs and next_obs of each pair of stacks.
    uint64_t row_bytes
    int dimensions
    Py_ssize_t shape[8]
    int target


cdef class RingMemory:
    cdef pe_ring _ring
    cdef bint _open
    cdef bint _dead
    cdef Py_buffer _arena
    cdef bytes _header
    cdef tuple _defaults
    cdef tuple _names
    cdef bytes _formats
    cdef given_field *_given
    cdef pe_mutable_field *_mutables
    cdef pe_stack *_stacks
    cdef uint32_t *_ends
    cdef pe_priorities _priorities
    cdef uint64_t _lanes
    cdef uint64_t _capacity
    cdef int _appends  # append fields that callers give
    cdef int _total    # all fields that they give
    cdef int _targets  # outputs and sources
    cdef list _hold_views
    cdef object __weakref__

    def __cinit__(self, arena, int arena_fd, int seal_event, bytes header_image, tuple names,
                  bytes formats, tuple given, tuple mutables, tuple defaults, tuple end_fields,
                  tuple stacks):
        cdef Py_ssize_t i, axis
        self._open = False
        self._dead = False
        self._given = NULL
        self._mutables = NULL
        self._stacks = NULL
        self._ends = NULL
        memset(&self._ring, 0, sizeof(pe_ring))
        memset(&self._priorities, 0, sizeof(pe_priorities))
        PyObject_GetBuffer(arena, &self._arena, PyBUF_WRITABLE)
        self._open = True
        self._header = header_image
        self._names = names
        self._formats = formats
        self._defaults = defaults
        self._hold_views = []
        self._mutables = <pe_mutable_field *>calloc(len(mutables) + 1, sizeof(pe_mutable_field))
        self._ends = <uint32_t *>calloc(len(end_fields) + 1, sizeof(uint32_t))
        self._given = <given_field *>calloc(len(given) + 1, sizeof(given_field))
        self._stacks = <pe_stack *>calloc(len(stacks) + 1, sizeof(pe_stack))
        if (self._mutables == NULL or self._ends == NULL or self._given == NULL
                or self._stacks == NULL):
            raise MemoryError
        for i in range(len(given)):
            self._given[i].target, self._given[i].row_bytes, shape = given[i]
            self._given[i].dimensions = len(shape)
            for axis in range(len(shape)):
                self._given[i].shape[axis] = shape[axis]
        for i in range(len(stacks)):
            self._stacks[i].field, self._stacks[i].depth = stacks[i]
        for i in range(len(mutables)):
            self._mutables[i].row_bytes, self._mutables[i].offset = mutables[i]
        for i in range(len(end_fields)):
            self._ends[i] = end_fields[i]
        self._ring.control = <pe_ring_control *>self._arena.buf
        self._ring.base = <uint8_t *>self._arena.buf
        self._ring.arena_fd = arena_fd
        self._ring.seal_event = seal_event
        self._ring.header_image = <const uint8_t *>PyBytes_AS_STRING(header_image)
        self._ring.header_bytes = len(header_image)
        self._ring.field_count = (<const pe_segment_header *>self._ring.header_image).field_count
        self._ring.fields = pe_segment_fields(<const pe_segment_header *>self._ring.header_image)
        self._ring.mutables = self._mutables
        self._ring.mutable_count = <uint32_t>len(mutables)
        self._ring.end_fields = self._ends
        self._ring.end_count = <uint32_t>len(end_fields)
        self._ring.stacks = self._stacks
        self._ring.stack_count = <uint32_t>len(stacks)
        self._total = len(given)
        self._appends = self._total - <int>len(mutables)
        self._targets = <int>self._ring.field_count + <int>len(mutables) + 2 * <int>len(stacks)
        self._lanes = self._ring.control.lanes
        self._capacity = self._lanes * self._ring.control.rows_per_lane
        if pe_ring_open(&self._ring) != PE_OK:
            raise MemoryError

    def __dealloc__(self):
        if self._open:
            pe_ring_free(&self._ring)
            if not self._dead:
                PyBuffer_Release(&self._arena)
        free(self._given)
        free(self._mutables)
        free(self._stacks)
        free(self._ends)

    def close(self):
        cdef pe_status status
        if self._dead or not self._open:
            return
        with nogil:
            status = pe_ring_close(&self._ring)
        _report(status, NULL)
        if self._open:  # another thread may have come here first
            self._open = False
            pe_ring_free(&self._ring)
            PyBuffer_Release(&self._arena)
            self._hold_views = []

    def disarm(self):
        """In a forked child: the arena is not mapped here, nothing may touch it again."""
        self._dead = True

    cdef int _check(self) except -1:
        if self._dead:
            raise ForkedProcessError("the ring belongs to the process that forked this one")
        if not self._open:
            raise ClosedError("the ring was closed")
        return 0

    cdef int _lock(self) except -1:
        cdef pe_status status
        self._check()
        with nogil:
            status = pe_ring_lock(&self._ring)
        return _report(status, NULL)

    def locked(self):
        return Locked.__new__(Locked, self)

    cdef int _lock_shared(self) except -1:
        cdef pe_status status
        self._check()
        with nogil:
            status = pe_ring_lock_shared(&self._ring)
        return _report(status, NULL)


def exchange(owner, str name, RingMemory memory, former, value):
    cdef bint locked = memory is not None
    if locked:
        memory._lock()
    try:
        if getattr(owner, name) is not former:
            return False
        setattr(owner, name, value)
        return True
    finally:
        if locked:
            pe_ring_unlock(&memory._ring)


cdef class Locked:
    """The lock for a `with` statement."""
    cdef RingMemory _memory

    def __cinit__(self, RingMemory memory):
        self._memory = memory

    def __enter__(self):
        self._memory._lock()

    def __exit__(self, *exception):
        pe_ring_unlock(&self._memory._ring)
