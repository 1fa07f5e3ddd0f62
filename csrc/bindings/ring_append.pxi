# Adding rows: given exactly, in one look, or already converted.

from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from ring_native cimport (
    PE_BROKEN_STACK, PE_CLOSED, PE_NO_MEMORY, PE_OK, pe_fault, pe_ring_append, pe_ring_append_stacks,
    pe_ring_break, pe_ring_lock, pe_ring_try_lock, pe_ring_unlock, pe_source, pe_stack_source,
    pe_status,
)

cdef enum:
    # 1024 fields are given; a pair of them has one place more than its two.
    MAX_TARGETS = 1537
    # Below this many bytes a copy is cheaper than giving the GIL away and taking it back.
    RELEASE_GIL_BYTES = 65536
    STACK_FIELDS = 32


cdef bint _take(value, Py_buffer *view) except -1:
    """Take a contiguous buffer; False for one that is not, or that has no format."""
    try:
        PyObject_GetBuffer(value, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)
    except (BufferError, ValueError):
        return False
    return True


cdef bint _is_char(const Py_buffer *view, char expected) noexcept:
    """Whether a buffer's items have the format that NumPy writes as one character."""
    cdef const char *form = view.format
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


cdef bint _has_lead(const Py_buffer *view, int lead, uint64_t steps, uint64_t lanes,
                    bint has_steps) noexcept:
    """Whether the first `lead` axes are (steps,) lanes; one lane may have no axis."""
    cdef int at = 1 if has_steps else 0
    if lead < at or (has_steps and view.shape[0] != <Py_ssize_t>steps):
        return False
    if lead == at:
        return lanes == 1
    return lead == at + 1 and view.shape[at] == <Py_ssize_t>lanes


cdef class RingAppend(RingMemory):
    cdef pe_status _append_rows(self, uint64_t lane_begin, uint64_t lane_count, uint64_t steps,
                                pe_source *sources, const uint8_t *mask, uint64_t *done,
                                pe_fault *fault) noexcept nogil:
        """Append from sources by target. Exclusive lock held."""
        cdef const pe_source *mutables = sources + self._ring.field_count
        cdef const pe_stack_source *pairs = <const pe_stack_source *>(
            mutables + self._ring.mutable_count)
        cdef uint32_t i, field
        if self._ring.stack_count == 0:
            return pe_ring_append(&self._ring, lane_begin, lane_count, steps, sources, mutables,
                                  mask, done, fault)
        for i in range(self._ring.stack_count):
            field = self._stacks[i].field
            sources[field] = pairs[i].next_obs
            sources[field].data += (self._stacks[i].depth - 1) * self._ring.fields[field].row_bytes
        return pe_ring_append_stacks(&self._ring, lane_begin, lane_count, steps, sources, mutables,
                                     pairs, mask, done, fault)

    cdef int _report_append(self, pe_status status, const pe_fault *fault,
                            uint64_t lane_begin, uint64_t lane_count) except -1:
        cdef int64_t row
        if status == PE_BROKEN_STACK:
            row = fault.row
            raise BrokenStack(<int>fault.block, row // <int64_t>lane_count,
                              lane_begin + <uint64_t>(row % <int64_t>lane_count))
        return _report(status, fault)

    def append(self, list values, uint64_t lane_begin, uint64_t lane_count, uint64_t steps,
               uint64_t done, mask):
        """values: one C-contiguous buffer a field (steps x lane_count rows), None = default."""
        cdef uint64_t before = done
        cdef pe_source sources[MAX_TARGETS]
        cdef pe_source *source
        cdef pe_fault fault
        cdef pe_status status
        cdef uint64_t row_bytes
        cdef int i, count = len(values)
        cdef Py_buffer mask_view
        cdef const uint8_t *mask_bytes = NULL
        cdef Py_buffer *views
        cdef int held = 0
        self._check()
        if count != self._total:
            raise ValueError("one value for each field")
        views = <Py_buffer *>calloc(count + 1, sizeof(Py_buffer))
        if views == NULL:
            raise MemoryError
        try:
            for i in range(count):
                row_bytes = self._given[i].row_bytes
                source = &sources[self._given[i].target]
                value = values[i]
                constant = value is None
                if constant:
                    value = self._defaults[i - self._appends]
                PyObject_GetBuffer(value, &views[held], PyBUF_C_CONTIGUOUS)
                held += 1
                if <uint64_t>views[held - 1].len != (
                        row_bytes if constant else row_bytes * steps * lane_count):
                    raise ValueError(f"field {i}: {views[held - 1].len} bytes do not fit the rows")
                source.data = <const uint8_t *>views[held - 1].buf
                if constant:
                    source.data = self._default_of(i - self._appends)
                source.step_bytes = 0 if constant else row_bytes * lane_count
                source.lane_bytes = 0 if constant else row_bytes
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
                    status = self._append_rows(lane_begin, lane_count, steps, sources, mask_bytes,
                                               &done, &fault)
                    pe_ring_unlock(&self._ring)
            if status != PE_NO_MEMORY or done == before:
                self._report_append(status, &fault, lane_begin, lane_count)
            return done
        finally:
            for i in range(held):
                PyBuffer_Release(&views[i])
            free(views)

    def append_exact(self, dict fields, mask, bint has_steps, int64_t lane):
        """Append values that have exactly the schema's shapes and dtypes: a step, or `has_steps`.

        How many steps are left: 0 done, more: no free slot, or no memory for one. -1: something
        needs a closer look, nothing was done. `lane` -1: all of them.
        """
        cdef Py_buffer views[STACK_FIELDS]
        cdef pe_source sources[STACK_FIELDS]
        cdef pe_source *source
        cdef int held = 0, i, given = 0
        cdef uint64_t lanes, row_bytes, bytes_given = 0, steps = 1
        cdef PyObject *item
        cdef pe_status status = PE_OK
        cdef pe_fault fault
        cdef uint64_t done = 0, lane_begin = 0 if lane < 0 else <uint64_t>lane
        cdef const uint8_t *mask_bytes = NULL
        if self._dead or not self._open or self._targets > STACK_FIELDS:
            return -1
        if lane >= <int64_t>self._lanes:
            raise IndexError(f"lane {lane} of {self._lanes}")
        lanes = self._lanes if lane < 0 else 1
        try:
            for i in range(self._total):
                source = &sources[self._given[i].target]
                row_bytes = self._given[i].row_bytes
                item = PyDict_GetItem(fields, self._names[i])
                if item == NULL:
                    if i < self._appends or self._defaults[i - self._appends] is None:
                        return -1
                    source.data = self._default_of(i - self._appends)
                    source.step_bytes = 0
                    source.lane_bytes = 0
                    continue
                given += 1
                value = <object>item
                if not PyObject_CheckBuffer(value):
                    return -1
                if not _take(value, &views[held]):
                    return -1
                held += 1
                if has_steps and given == 1:
                    if views[0].ndim == 0:
                        return -1
                    steps = <uint64_t>views[0].shape[0]
                if not self._fits(&views[held - 1], i, steps, lanes, has_steps):
                    return -1
                source.data = <const uint8_t *>views[held - 1].buf
                source.step_bytes = row_bytes * lanes
                source.lane_bytes = row_bytes
                bytes_given += row_bytes * lanes * steps
            if given != len(fields) or given == 0:
                return -1
            if mask is not None:
                if not PyObject_CheckBuffer(mask):
                    return -1
                if not _take(mask, &views[held]):
                    return -1
                held += 1
                if (views[held - 1].ndim != 1 + has_steps
                        or not _has_lead(&views[held - 1], 1 + has_steps, steps, lanes, has_steps)
                        or not _is_char(&views[held - 1], b'?')):
                    return -1
                mask_bytes = <const uint8_t *>views[held - 1].buf
            if bytes_given < RELEASE_GIL_BYTES and pe_ring_try_lock(&self._ring):
                status = self._append_rows(lane_begin, lanes, steps, sources, mask_bytes, &done,
                                           &fault)
                pe_ring_unlock(&self._ring)
            else:
                with nogil:
                    status = pe_ring_lock(&self._ring)
                    if status == PE_OK:
                        status = self._append_rows(lane_begin, lanes, steps, sources, mask_bytes,
                                                   &done, &fault)
                        pe_ring_unlock(&self._ring)
            if status == PE_CLOSED:
                return -1
            if status != PE_NO_MEMORY:
                self._report_append(status, &fault, lane_begin, lanes)
            return steps - done
        finally:
            for i in range(held):
                PyBuffer_Release(&views[i])

    cdef const uint8_t *_default_of(self, int mutable) noexcept:
        """What a row gets that is not given a value; the bytes live as long as this object."""
        if self._ring.priorities != NULL and <int>self._priorities.rule.field == mutable:
            return <const uint8_t *>&self._priorities.highest  # read under the lock
        return <const uint8_t *>PyBytes_AS_STRING(self._defaults[mutable])

    cdef bint _is_format(self, const Py_buffer *view, int field) noexcept:
        return _is_char(view, PyBytes_AS_STRING(self._formats)[field])

    cdef bint _fits(self, const Py_buffer *view, int field, uint64_t steps, uint64_t lanes,
                    bint has_steps) noexcept:
        """Whether a buffer has a field's dtype, and its shape behind (steps,) lanes."""
        cdef const given_field *given = &self._given[field]
        cdef int lead = view.ndim - given.dimensions
        cdef int d
        if (not self._is_format(view, field)
                or not _has_lead(view, lead, steps, lanes, has_steps)):
            return False
        for d in range(given.dimensions):
            if view.shape[lead + d] != given.shape[d]:
                return False
        return True

    def break_lanes(self, uint64_t lane_begin, uint64_t lane_count):
        if lane_begin > self._lanes or lane_count > self._lanes - lane_begin:
            raise IndexError(f"lanes {lane_begin} to {lane_begin + lane_count} of {self._lanes}")
        self._lock()
        pe_ring_break(&self._ring, lane_begin, lane_count)
        pe_ring_unlock(&self._ring)
