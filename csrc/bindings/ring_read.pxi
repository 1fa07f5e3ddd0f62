# Reading rows and changing mutable fields: draws, gathers, updates by ref.

from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from ring_native cimport (
    PE_OK, pe_fault, pe_pcg64, pe_ring_draw, pe_ring_gather, pe_ring_lock, pe_ring_lock_shared,
    pe_ring_refs_at, pe_ring_unlock, pe_ring_update, pe_status, pthread_mutex_lock,
    pthread_mutex_unlock,
)


cdef class RingRead(RingAppend):
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
