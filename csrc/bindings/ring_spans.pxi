# What spans rows: marks, returns over n steps, windows of sequences.

from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from ring_native cimport (
    PE_OK, pe_fault, pe_lane_tail, pe_lane_total, pe_marks_build, pe_ring_draw_windows, pe_ring_lock, pe_ring_lock_shared, pe_ring_unlock, pe_row_position,
    pe_status, pe_steps, pe_steps_find, pe_steps_sum, pthread_mutex_lock, pthread_mutex_unlock,
)


cdef class RingSpans(RingPriorities):
    @property
    def has_marks(self):
        return self._ring.marks != NULL

    @property
    def valid_rows(self):
        return atomic_load_explicit(&self._ring.valid_rows, memory_order_acquire)

    def build_marks(self):
        cdef pe_fault fault
        cdef pe_status status
        self._check()
        with nogil:
            status = pe_ring_lock(&self._ring)
            if status == PE_OK:
                status = pe_marks_build(&self._ring, &fault)
                pe_ring_unlock(&self._ring)
        _report(status, &fault)

    def marks(self, uint64_t lane):
        """Return (row id of the first, marks of the lane's window): START 1, OPENING 2, VALID 4."""
        cdef uint64_t tail, row, total
        cdef bytes marks
        cdef uint8_t *to
        if lane >= self._lanes:
            raise IndexError(f"lane {lane} of {self._lanes}")
        self._lock_shared()
        try:
            if self._ring.marks == NULL:
                raise RuntimeError("the ring has no marks yet")
            tail, total = pe_lane_tail(&self._ring, lane), pe_lane_total(&self._ring, lane)
            marks = PyBytes_FromStringAndSize(NULL, total - tail)
            to = <uint8_t *>PyBytes_AS_STRING(marks)
            for row in range(tail, total):
                to[row - tail] = self._ring.marks[pe_row_position(&self._ring, lane, row)]
            return tail, marks
        finally:
            pe_ring_unlock(&self._ring)

    cdef int _take_outputs(self, list outputs, uint64_t rows, Py_buffer *views,
                           uint8_t **targets, int *held) except -1:
        """Take the buffers of outputs, one a field that is given, or None."""
        cdef int i
        if len(outputs) != self._total:
            raise ValueError("one output for each field")
        for i in range(self._total):
            if outputs[i] is None:
                continue
            PyObject_GetBuffer(outputs[i], &views[held[0]], PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)
            held[0] += 1
            if <uint64_t>views[held[0] - 1].len != self._given[i].row_bytes * rows:
                raise ValueError(f"output {i} does not fit the rows")
            targets[self._given[i].target] = <uint8_t *>views[held[0] - 1].buf
        return 0

    def gather_steps(self, int64_t[::1] refs, list outputs, bint draw, uint64_t most, double gamma,
                     int reward, bytes of_last, int64_t[::1] lasts, int64_t[::1] steps,
                     float[::1] discounts, float[::1] weights=None, double beta=0):
        """Fill `outputs`, those that `of_last` marks from the last of up to `most` steps.

        `reward` is the number of the given field that becomes the return; `weights` as for
        `gather`.
        """
        cdef uint64_t rows = refs.shape[0]
        cdef const given_field *of_reward = &self._given[reward]
        cdef float *weighed
        cdef uint8_t *returns
        cdef uint8_t **targets
        cdef uint8_t **last_targets
        cdef Py_buffer *views
        cdef pe_steps sum
        cdef pe_status status
        cdef pe_fault fault
        cdef int held = 0, i
        self._check()
        if (not 0 <= reward < self._appends or len(of_last) != self._total or most == 0
                or lasts.shape[0] != refs.shape[0] or steps.shape[0] != refs.shape[0]
                or discounts.shape[0] != refs.shape[0]):
            raise ValueError("a mark for each field, steps and discounts for each ref")
        weighed = self._weights_of(weights, rows)
        if rows == 0:
            return
        views = <Py_buffer *>calloc(self._total + 1, sizeof(Py_buffer))
        targets = <uint8_t **>calloc(2 * self._targets, sizeof(uint8_t *))
        try:
            if views == NULL or targets == NULL:
                raise MemoryError
            last_targets = targets + self._targets
            self._take_outputs(outputs, rows, views, targets, &held)
            for i in range(self._total):
                if of_last[i]:
                    last_targets[self._given[i].target] = targets[self._given[i].target]
                    targets[self._given[i].target] = NULL
            returns = targets[of_reward.target]
            targets[of_reward.target] = NULL
            sum.refs, sum.steps, sum.count = &refs[0], &steps[0], rows
            sum.field, sum.gamma = <uint32_t>of_reward.target, gamma
            sum.is_double = PyBytes_AS_STRING(self._formats)[reward] == b'd'
            with nogil:
                status = pe_ring_lock_shared(&self._ring)
                if status == PE_OK:
                    if draw:
                        status = self._draw(rows, &refs[0], weighed, beta)
                    if status == PE_OK:
                        status = self._copy_out(&refs[0], rows, targets, &fault)
                    if status == PE_OK:
                        pe_steps_find(&self._ring, &refs[0], rows, most, &lasts[0], &steps[0])
                        status = self._copy_out(&lasts[0], rows, last_targets, &fault)
                    if status == PE_OK:
                        status = pe_steps_sum(&self._ring, &sum, returns, &discounts[0], &fault)
                    pe_ring_unlock(&self._ring)
            _report(status, &fault)
        finally:
            for i in range(held):
                PyBuffer_Release(&views[i])
            free(views)
            free(targets)

    def gather_windows(self, int64_t[::1] refs, int64_t[::1] lengths, list outputs, bint draw,
                       bint pad):
        """Fill `outputs` with windows of refs.shape[0] / lengths.shape[0] rows, drawn if asked.

        Behind the end of a short one the outputs are zero, and refs repeat its last row.
        """
        cdef uint64_t count = lengths.shape[0], rows = refs.shape[0], length, i, at, row_bytes
        cdef uint8_t **targets
        cdef Py_buffer *views
        cdef pe_status status
        cdef pe_fault fault
        cdef int held = 0, f
        self._check()
        if count == 0 or rows == 0 or rows % count:
            raise ValueError("windows of equal length, at least one row")
        length = rows // count
        views = <Py_buffer *>calloc(self._total + 1, sizeof(Py_buffer))
        targets = <uint8_t **>calloc(self._targets, sizeof(uint8_t *))
        try:
            if views == NULL or targets == NULL:
                raise MemoryError
            self._take_outputs(outputs, rows, views, targets, &held)
            with nogil:
                status = pe_ring_lock_shared(&self._ring)
                if status == PE_OK:
                    if draw:
                        pthread_mutex_lock(&self._ring.draw)
                        status = pe_ring_draw_windows(&self._ring, count, length, pad, &refs[0],
                                                      &lengths[0])
                        pthread_mutex_unlock(&self._ring.draw)
                    if status == PE_OK:
                        status = self._copy_out(&refs[0], rows, targets, &fault)
                    pe_ring_unlock(&self._ring)
                for f in range(self._total if status == PE_OK else 0):
                    if targets[self._given[f].target] == NULL:
                        continue
                    row_bytes = self._given[f].row_bytes
                    for i in range(count):
                        at = i * length + <uint64_t>lengths[i]
                        memset(targets[self._given[f].target] + at * row_bytes, 0,
                               ((i + 1) * length - at) * row_bytes)
            _report(status, &fault)
        finally:
            for f in range(held):
                PyBuffer_Release(&views[f])
            free(views)
            free(targets)
