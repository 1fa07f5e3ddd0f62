"""The ring's native core for Python: converts buffers, releases the GIL, reports. See ring.pyi."""

from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release,
    PyObject_CheckBuffer, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.dict cimport PyDict_GetItem
from cpython.exc cimport PyErr_Clear
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from control_block cimport pe_atomic, pe_file, pe_ring_control

from pyengine._native.hashing import function_address
from pyengine.errors import ClosedError, EmptyRingError, ForkedProcessError, UnknownRefError

cdef extern from "hash.h" nogil:
    ctypedef uint64_t (*pe_hash_function)(const void *data, size_t bytes) noexcept
    void pe_hash_bind(pe_hash_function function)

cdef extern from "format.h" nogil:
    struct pe_segment_header:
        uint32_t header_bytes
        uint32_t field_count
    struct pe_field_record:
        uint32_t dimensions
        uint64_t shape[8]
        uint64_t row_bytes
        uint64_t offset
    const pe_field_record *pe_segment_fields(const pe_segment_header *header)

cdef extern from "pcg64.h" nogil:
    struct pe_pcg64:
        uint64_t state_high, state_low, inc_high, inc_low

cdef extern from "ring.h" nogil:
    enum pe_status:
        PE_OK, PE_NO_SLOT, PE_NO_MEMORY, PE_BUSY, PE_UNKNOWN_REF, PE_EMPTY, PE_DAMAGED
        PE_UNREADABLE, PE_OUT_OF_MEMORY
    struct pe_fault:
        int64_t row
        uint64_t lane, segment, offset, expected, got
    struct pe_source:
        const uint8_t *data
        uint64_t step_bytes, lane_bytes
    struct pe_mutable_field:
        uint64_t row_bytes, offset
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
        uint64_t file_count, free_count, retired_files, lost_updates
        pe_pcg64 rng
        pthread_mutex_t draw
    int pthread_mutex_lock(pthread_mutex_t *mutex)
    int pthread_mutex_unlock(pthread_mutex_t *mutex)
    pe_status pe_ring_open(pe_ring *ring)
    void pe_ring_close(pe_ring *ring)
    pe_status pe_ring_lock(pe_ring *ring)
    pe_status pe_ring_lock_shared(pe_ring *ring)
    bint pe_ring_try_lock(pe_ring *ring)
    void pe_ring_unlock(pe_ring *ring)
    pe_status pe_ring_append(pe_ring *ring, uint64_t lane_begin, uint64_t lane_count,
                             uint64_t steps, const pe_source *sources, const pe_source *mutables,
                             const uint8_t *mask, uint64_t *done, pe_fault *fault)
    pe_status pe_ring_reserve_ahead(pe_ring *ring, uint64_t ahead)
    void pe_ring_break(pe_ring *ring, uint64_t lane)
    bint pe_ring_hold(pe_ring *ring, pe_atomic *word, uint64_t sequence)
    void pe_ring_drop_holds(pe_ring *ring)
    pe_status pe_ring_update(pe_ring *ring, uint32_t field, const int64_t *refs, uint64_t count,
                             const uint8_t *values, uint64_t value_stride, uint64_t *lost,
                             pe_fault *fault)
    pe_status pe_ring_draw(pe_ring *ring, uint64_t count, int64_t *refs)
    pe_status pe_ring_gather(pe_ring *ring, const int64_t *refs, uint64_t count,
                             uint8_t **outputs, uint8_t **mutable_outputs, pe_fault *fault)
    void pe_ring_refs_at(const pe_ring *ring, const int64_t *positions, uint64_t count,
                         int64_t *refs)
    void pe_ring_set_lane(pe_ring *ring, uint64_t lane, uint64_t tail, uint64_t total_count,
                          bint break_pending)
    void pe_ring_map_segment(pe_ring *ring, uint64_t lane, uint64_t segment, const uint8_t *image,
                             const pe_file *file)
    pe_status pe_ring_open_segment(pe_ring *ring, uint64_t lane, uint64_t segment, uint8_t **image,
                                   pe_fault *fault)
    void pe_ring_collect(pe_ring *ring)

pe_hash_bind(<pe_hash_function><uintptr_t>function_address())

cdef enum:
    MAX_FIELDS = 1025
    # Below this many bytes a copy is cheaper than giving the GIL away and taking it back.
    RELEASE_GIL_BYTES = 65536
    STACK_FIELDS = 32


class BlockFault(Exception):
    """A mapped block that cannot be read (`error_number`) or whose hash differs (0)."""

    def __init__(self, lane, segment, offset, expected, got, error_number):
        super().__init__(f"lane {lane}, segment {segment}, byte {offset}")
        self.lane = lane
        self.segment = segment
        self.offset = offset
        self.expected = expected
        self.got = got
        self.error_number = error_number


class NoMemory(Exception):
    """Shared memory had no room for a segment slot; `error_number` says why."""

    def __init__(self, error_number):
        super().__init__(error_number)
        self.error_number = error_number


cdef int _report(pe_status status, const pe_fault *fault) except -1:
    """Turn a status into an exception: the one place that does."""
    if status == PE_OK or status == PE_NO_SLOT:
        return 0
    if status == PE_NO_MEMORY:
        raise NoMemory(<int>fault.got)
    if status == PE_BUSY:
        raise RuntimeError("the ring's lock is already held by this thread")
    if status == PE_UNKNOWN_REF:
        raise UnknownRefError(f"ref {fault.row} names no row of the ring's window",
                              field="refs", expected="a ref in the window", got=fault.row)
    if status == PE_EMPTY:
        raise EmptyRingError("the ring holds no row yet")
    if status == PE_DAMAGED:
        raise BlockFault(fault.lane, fault.segment, fault.offset, fault.expected, fault.got, 0)
    if status == PE_UNREADABLE:
        raise BlockFault(fault.lane, fault.segment, fault.offset, None, None, <int>fault.got)
    raise MemoryError


cdef class RingCore:
    cdef pe_ring _ring
    cdef bint _open
    cdef bint _dead
    cdef Py_buffer _arena
    cdef bytes _header
    cdef tuple _defaults
    cdef tuple _names
    cdef bytes _formats
    cdef pe_mutable_field *_mutables
    cdef uint32_t *_ends
    cdef uint64_t _row_bytes
    cdef int _appends  # append fields that callers give: all but the start field
    cdef object _hold_owners
    cdef object __weakref__

    def __cinit__(self, arena, int arena_fd, int seal_event, bytes header_image, tuple names,
                  bytes formats, tuple mutables, tuple defaults, tuple end_fields):
        cdef Py_ssize_t i
        self._open = False
        self._dead = False
        self._mutables = NULL
        self._ends = NULL
        memset(&self._ring, 0, sizeof(pe_ring))
        PyObject_GetBuffer(arena, &self._arena, PyBUF_WRITABLE)
        self._open = True
        self._header = header_image
        self._names = names
        self._formats = formats
        self._defaults = defaults
        self._hold_owners = []
        self._mutables = <pe_mutable_field *>calloc(len(mutables) + 1, sizeof(pe_mutable_field))
        self._ends = <uint32_t *>calloc(len(end_fields) + 1, sizeof(uint32_t))
        if self._mutables == NULL or self._ends == NULL:
            raise MemoryError
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
        self._appends = <int>self._ring.field_count - 1
        self._row_bytes = 0
        for i in range(self._ring.field_count):
            self._row_bytes += self._ring.fields[i].row_bytes
        if pe_ring_open(&self._ring) != PE_OK:
            raise MemoryError

    def __dealloc__(self):
        if self._open:
            pe_ring_close(&self._ring)
            if not self._dead:
                PyBuffer_Release(&self._arena)
        free(self._mutables)
        free(self._ends)

    def close(self):
        if self._open and not self._dead:
            self._open = False
            pe_ring_close(&self._ring)
            PyBuffer_Release(&self._arena)

    def disarm(self):
        """In a forked child: the arena is not mapped here, nothing may touch it again."""
        self._dead = True

    cdef int _check(self) except -1:
        if self._dead:
            raise ForkedProcessError("the ring belongs to the process that forked this one")
        if not self._open:
            raise ClosedError("the ring was closed")
        return 0

    # --- locks ------------------------------------------------------------------------------

    def lock(self):
        cdef pe_status status
        self._check()
        with nogil:
            status = pe_ring_lock(&self._ring)
        _report(status, NULL)

    def unlock(self):
        pe_ring_unlock(&self._ring)

    cdef int _lock_shared(self) except -1:
        cdef pe_status status
        self._check()
        with nogil:
            status = pe_ring_lock_shared(&self._ring)
        return _report(status, NULL)

    # --- append -----------------------------------------------------------------------------

    def append(self, list values, uint64_t lane_begin, uint64_t lane_count, uint64_t steps,
               uint64_t done, mask):
        """values: one C-contiguous buffer a field (steps x lane_count rows), None = default."""
        cdef pe_source sources[MAX_FIELDS]
        cdef pe_fault fault
        cdef pe_status status
        cdef uint64_t row_bytes
        cdef int i, count = len(values)
        cdef Py_buffer mask_view
        cdef const uint8_t *mask_bytes = NULL
        cdef Py_buffer *views
        cdef int held = 0
        self._check()
        if count != self._appends + <int>self._ring.mutable_count:
            raise ValueError("one value for each field")
        views = <Py_buffer *>calloc(count + 1, sizeof(Py_buffer))
        if views == NULL:
            raise MemoryError
        try:
            for i in range(count):
                if i < self._appends:
                    row_bytes = self._ring.fields[i].row_bytes
                else:
                    row_bytes = self._mutables[i - self._appends].row_bytes
                value = values[i]
                constant = value is None
                if constant:
                    value = self._defaults[i - self._appends]
                PyObject_GetBuffer(value, &views[held], PyBUF_C_CONTIGUOUS)
                held += 1
                if <uint64_t>views[held - 1].len != (
                        row_bytes if constant else row_bytes * steps * lane_count):
                    raise ValueError(f"field {i}: {views[held - 1].len} bytes do not fit the rows")
                sources[i].data = <const uint8_t *>views[held - 1].buf
                sources[i].step_bytes = 0 if constant else row_bytes * lane_count
                sources[i].lane_bytes = 0 if constant else row_bytes
            if mask is not None:
                PyObject_GetBuffer(mask, &mask_view, PyBUF_C_CONTIGUOUS)
                views[held] = mask_view
                held += 1
                if <uint64_t>mask_view.len != steps * lane_count:
                    raise ValueError("the mask has one byte a row")
                mask_bytes = <const uint8_t *>mask_view.buf
            with nogil:
                status = pe_ring_lock(&self._ring)
                if status == PE_OK:
                    status = pe_ring_append(&self._ring, lane_begin, lane_count, steps, sources,
                                            sources + self._appends, mask_bytes, &done, &fault)
                    pe_ring_unlock(&self._ring)
            _report(status, &fault)
            return done
        finally:
            for i in range(held):
                PyBuffer_Release(&views[i])
            free(views)

    def add_exact(self, dict fields, mask):
        """Append one step whose values have exactly the schema's shapes and dtypes.

        1: done. 0: something needs a closer look, nothing was done. -1: no free slot.
        """
        cdef Py_buffer views[STACK_FIELDS]
        cdef pe_source sources[STACK_FIELDS]
        cdef int held = 0, i, given = 0, total = self._appends + <int>self._ring.mutable_count
        cdef uint64_t lanes, row_bytes, bytes_given = 0
        cdef PyObject *item
        cdef pe_status status = PE_OK
        cdef pe_fault fault
        cdef uint64_t done = 0
        cdef bint fits
        cdef const uint8_t *mask_bytes = NULL
        if self._dead or not self._open or total + 1 > STACK_FIELDS:
            return 0
        lanes = self._ring.control.lanes
        try:
            for i in range(total):
                item = PyDict_GetItem(fields, self._names[i])
                if item == NULL:
                    if i < self._appends or self._defaults[i - self._appends] is None:
                        return 0
                    sources[i].data = <const uint8_t *>PyBytes_AS_STRING(
                        self._defaults[i - self._appends])
                    sources[i].step_bytes = 0
                    sources[i].lane_bytes = 0
                    continue
                given += 1
                value = <object>item
                if not PyObject_CheckBuffer(value):
                    return 0
                try:
                    PyObject_GetBuffer(value, &views[held], PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)
                except (BufferError, ValueError):
                    return 0
                held += 1
                if i < self._appends:
                    row_bytes = self._ring.fields[i].row_bytes
                    fits = self._fits(&views[held - 1], i, lanes)
                else:
                    row_bytes = self._mutables[i - self._appends].row_bytes
                    fits = (<uint64_t>views[held - 1].len == lanes * row_bytes
                            and views[held - 1].ndim == 1 and self._is_format(&views[held - 1], i)
                            and views[held - 1].shape[0] == <Py_ssize_t>lanes)
                if not fits:
                    return 0
                sources[i].data = <const uint8_t *>views[held - 1].buf
                sources[i].step_bytes = row_bytes * lanes
                sources[i].lane_bytes = row_bytes
                bytes_given += row_bytes * lanes
            if given != len(fields):
                return 0
            if mask is not None:
                if not PyObject_CheckBuffer(mask):
                    return 0
                try:
                    PyObject_GetBuffer(mask, &views[held], PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)
                except (BufferError, ValueError):
                    return 0
                held += 1
                if (views[held - 1].ndim != 1 or <uint64_t>views[held - 1].len != lanes
                        or views[held - 1].format == NULL or views[held - 1].format[0] != b'?'):
                    return 0
                mask_bytes = <const uint8_t *>views[held - 1].buf
            if bytes_given < RELEASE_GIL_BYTES and pe_ring_try_lock(&self._ring):
                status = pe_ring_append(&self._ring, 0, lanes, 1, sources,
                                        sources + self._appends, mask_bytes, &done, &fault)
                pe_ring_unlock(&self._ring)
            else:
                with nogil:
                    status = pe_ring_lock(&self._ring)
                    if status == PE_OK:
                        status = pe_ring_append(&self._ring, 0, lanes, 1, sources,
                                                sources + self._appends, mask_bytes, &done, &fault)
                        pe_ring_unlock(&self._ring)
            _report(status, &fault)
            return 1 if status == PE_OK else -1
        finally:
            for i in range(held):
                PyBuffer_Release(&views[i])

    cdef bint _is_format(self, const Py_buffer *view, int field) noexcept:
        cdef const char *form = view.format
        cdef char expected = PyBytes_AS_STRING(self._formats)[field]
        if form == NULL:
            return False
        if form[0] in (b'<', b'=', b'@'):
            form += 1
        if form[0] == 0 or form[1] != 0:
            return False
        # int64 is 'l' for NumPy on Linux and 'q' elsewhere.
        if form[0] == b'q':
            return expected == b'l'
        if form[0] == b'Q':
            return expected == b'L'
        return form[0] == expected

    cdef bint _fits(self, const Py_buffer *view, int field, uint64_t lanes) noexcept:
        cdef const pe_field_record *record = &self._ring.fields[field]
        cdef int lead = view.ndim - <int>record.dimensions
        cdef uint32_t d
        if not self._is_format(view, field) or <uint64_t>view.len != lanes * record.row_bytes:
            return False
        if lead == 1:
            if view.shape[0] != <Py_ssize_t>lanes:
                return False
        elif lead != 0 or lanes != 1:
            return False
        for d in range(record.dimensions):
            if view.shape[lead + <int>d] != <Py_ssize_t>record.shape[d]:
                return False
        return True

    def reserve_ahead(self, uint64_t ahead):
        """True: one more slot has memory. False: enough have it for now. None: nothing to do."""
        cdef pe_status status
        if self._dead or not self._open:
            return None
        with nogil:
            status = pe_ring_reserve_ahead(&self._ring, ahead)
        if status == PE_OK:
            return True
        return None if status == PE_EMPTY or status == PE_NO_MEMORY else False

    def break_lane(self, uint64_t lane):
        cdef pe_status status
        self._check()
        with nogil:
            status = pe_ring_lock(&self._ring)
        _report(status, NULL)
        pe_ring_break(&self._ring, lane)
        pe_ring_unlock(&self._ring)

    def collect(self):
        cdef pe_status status
        self._check()
        with nogil:
            status = pe_ring_lock(&self._ring)
            if status == PE_OK:
                pe_ring_collect(&self._ring)
                pe_ring_unlock(&self._ring)
        _report(status, NULL)

    # --- snapshots (the lock is held by the caller) -------------------------------------------

    def hold(self, words, size_t offset, uint64_t sequence):
        cdef Py_buffer view
        self._check()
        PyObject_GetBuffer(words, &view, PyBUF_WRITABLE)
        try:
            if offset % 8 or offset + 8 > <size_t>view.len:
                raise ValueError("the word leaves the buffer")
            if not pe_ring_hold(&self._ring, <pe_atomic *>(<uint8_t *>view.buf + offset), sequence):
                raise RuntimeError("too many pending snapshots hold the ring")
            # The words must stay mapped while C may look at them.
            if words not in self._hold_owners:
                self._hold_owners.append(words)
        finally:
            PyBuffer_Release(&view)

    def drop_holds(self):
        if self._open and not self._dead:
            pe_ring_drop_holds(&self._ring)
        self._hold_owners = []

    # --- reading ----------------------------------------------------------------------------

    @property
    def seed_state(self):
        cdef pe_pcg64 *rng = &self._ring.rng
        return ((<object>rng.state_high << 64) | rng.state_low,
                (<object>rng.inc_high << 64) | rng.inc_low)

    @seed_state.setter
    def seed_state(self, tuple value):
        cdef object state = value[0], inc = value[1]
        self._ring.rng.state_high = state >> 64
        self._ring.rng.state_low = state & 0xFFFFFFFFFFFFFFFF
        self._ring.rng.inc_high = inc >> 64
        self._ring.rng.inc_low = inc & 0xFFFFFFFFFFFFFFFF

    @property
    def lost_updates(self):
        return self._ring.lost_updates

    @lost_updates.setter
    def lost_updates(self, uint64_t value):
        self._ring.lost_updates = value

    @property
    def free_slots(self):
        return self._ring.free_count

    @property
    def mapped_segments(self):
        return self._ring.file_count

    def take_retired(self):
        """Mapped files that left the window since the last call."""
        cdef uint64_t count = self._ring.retired_files
        self._ring.retired_files = 0
        return count

    def draw(self, int64_t[::1] refs):
        cdef pe_status status
        self._lock_shared()
        with nogil:
            pthread_mutex_lock(&self._ring.draw)
            status = pe_ring_draw(&self._ring, refs.shape[0], &refs[0] if refs.shape[0] else NULL)
            pthread_mutex_unlock(&self._ring.draw)
            pe_ring_unlock(&self._ring)
        _report(status, NULL)

    def gather(self, int64_t[::1] refs, list outputs, bint draw=False):
        """Fill `outputs` (one writable C-contiguous buffer a field, or None); draw first if asked."""
        cdef Py_buffer *views
        cdef uint8_t **targets
        cdef int held = 0, i, count = len(outputs)
        cdef uint64_t row_bytes, rows = refs.shape[0]
        cdef int64_t *first = &refs[0] if rows else NULL
        cdef pe_status status = PE_OK
        cdef pe_fault fault
        self._check()
        if count != <int>self._ring.field_count + <int>self._ring.mutable_count:
            raise ValueError("one output for each field")
        views = <Py_buffer *>calloc(count + 1, sizeof(Py_buffer))
        targets = <uint8_t **>calloc(count + 1, sizeof(uint8_t *))
        try:
            if views == NULL or targets == NULL:
                raise MemoryError
            for i in range(count):
                output = outputs[i]
                if output is None:
                    continue
                if i < <int>self._ring.field_count:
                    row_bytes = self._ring.fields[i].row_bytes
                else:
                    row_bytes = self._mutables[i - <int>self._ring.field_count].row_bytes
                PyObject_GetBuffer(output, &views[held], PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)
                held += 1
                if <uint64_t>views[held - 1].len != row_bytes * rows:
                    raise ValueError(f"output {i}: {views[held - 1].len} bytes do not fit the rows")
                targets[i] = <uint8_t *>views[held - 1].buf
            with nogil:
                status = pe_ring_lock_shared(&self._ring)
                if status == PE_OK:
                    if draw:
                        pthread_mutex_lock(&self._ring.draw)
                        status = pe_ring_draw(&self._ring, rows, first)
                        pthread_mutex_unlock(&self._ring.draw)
                    if status == PE_OK:
                        status = pe_ring_gather(&self._ring, first, rows, targets,
                                                targets + self._ring.field_count, &fault)
                    pe_ring_unlock(&self._ring)
            _report(status, &fault)
        finally:
            for i in range(held):
                PyBuffer_Release(&views[i])
            free(views)
            free(targets)

    def refs_at(self, int64_t[::1] positions, int64_t[::1] refs):
        self._lock_shared()
        if positions.shape[0]:
            pe_ring_refs_at(&self._ring, &positions[0], positions.shape[0], &refs[0])
        pe_ring_unlock(&self._ring)

    def update(self, uint32_t field, int64_t[::1] refs, values, bint constant=False):
        cdef Py_buffer view
        cdef pe_status status
        cdef pe_fault fault
        cdef uint64_t lost = 0, rows = refs.shape[0], stride
        self._check()
        if field >= self._ring.mutable_count:
            raise IndexError(f"mutable field {field} of {self._ring.mutable_count}")
        stride = self._mutables[field].row_bytes
        PyObject_GetBuffer(values, &view, PyBUF_C_CONTIGUOUS)
        try:
            if <uint64_t>view.len != (stride if constant else stride * rows):
                raise ValueError(f"{view.len} bytes do not fit {rows} rows")
            if rows == 0:
                return 0
            with nogil:
                status = pe_ring_lock(&self._ring)
                if status == PE_OK:
                    status = pe_ring_update(&self._ring, field, &refs[0], rows,
                                            <const uint8_t *>view.buf, 0 if constant else stride,
                                            &lost, &fault)
                    pe_ring_unlock(&self._ring)
            _report(status, &fault)
            return lost
        finally:
            PyBuffer_Release(&view)

    # --- restore ----------------------------------------------------------------------------

    def set_lane(self, uint64_t lane, uint64_t tail, uint64_t total_count, bint break_pending):
        self._check()
        pe_ring_set_lane(&self._ring, lane, tail, total_count, break_pending)

    def map_segment(self, uint64_t lane, uint64_t segment, size_t address, tuple record):
        cdef pe_file file
        self._check()
        (file.line, file.lane, file.first_row, file.row_count, file.sequence, file.checksum,
         file.file_bytes) = record
        pe_ring_map_segment(&self._ring, lane, segment, <const uint8_t *>address, &file)

    def open_segment(self, uint64_t lane, uint64_t segment):
        """Open a slot; return the byte offset of its image in the arena."""
        cdef uint8_t *image = NULL
        cdef pe_fault fault
        cdef pe_status status
        self._check()
        with nogil:
            status = pe_ring_open_segment(&self._ring, lane, segment, &image, &fault)
        _report(status, &fault)
        if status == PE_NO_SLOT:
            raise RuntimeError("no free slot while the ring is being restored")
        return image - self._ring.base
