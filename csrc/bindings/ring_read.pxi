# Reading rows and changing mutable fields: draws, gathers, updates by ref.

from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free

from ring_native cimport (
    PE_CLOSED, PE_OK, pe_fault, pe_items, pe_gather_targets, pe_pcg64, pe_priorities_draw,
    pe_ring_ask_draws, pe_ring_assign, pe_ring_draw_valid, pe_ring_gather_spans, pe_ring_lock, pe_ring_lock_shared,
    pe_ring_refs_at, pe_ring_try_lock_shared, pe_ring_unlock, pe_ring_update, pe_source, pe_status,
    pthread_mutex_lock,
    pthread_mutex_unlock,
)


cdef uint8_t *_tensor_target(value, type kind, tuple form, uint64_t rows) except? NULL:
    """Where the values of a contiguous CPU tensor (rows, *shape) lie; NULL: it is none, or looks
    otherwise. Its buffer is taken by address: a NumPy view of each costs more than the look.
    """
    if type(value) is not kind or value.dtype is not form[0]:
        return NULL
    if not value.is_cpu or value.shape != (rows, *<tuple>form[1]) or not value.is_contiguous():
        return NULL
    return <uint8_t *><uintptr_t>value.data_ptr()


cdef int _take_generator(tuple value, pe_pcg64 *rng) except -1:
    cdef object state = value[0], inc = value[1]
    rng.state_high = state >> 64
    rng.state_low = state & 0xFFFFFFFFFFFFFFFF
    rng.inc_high = inc >> 64
    rng.inc_low = inc & 0xFFFFFFFFFFFFFFFF
    return 0


cdef class RingRead(RingAppend):
    @property
    def seed_state(self):
        cdef pe_pcg64 rng
        pthread_mutex_lock(&self._ring.draw)
        rng = self._ring.rng
        pthread_mutex_unlock(&self._ring.draw)
        return ((<object>rng.state_high << 64) | rng.state_low,
                (<object>rng.inc_high << 64) | rng.inc_low)

    @seed_state.setter
    def seed_state(self, tuple value):
        cdef pe_pcg64 rng
        _take_generator(value, &rng)
        pthread_mutex_lock(&self._ring.draw)
        self._ring.rng = rng
        pthread_mutex_unlock(&self._ring.draw)

    def ask_draws(self, tuple seed_state, uint64_t count, bint verified=False):
        cdef pe_pcg64 rng
        cdef pe_status status
        self._check()
        _take_generator(seed_state, &rng)
        with nogil:
            status = pe_ring_lock_shared(&self._ring)
            if status == PE_OK:
                pe_ring_ask_draws(&self._ring, &rng, count, verified)
                pe_ring_unlock(&self._ring)
        _report(status, NULL)

    @property
    def lost_updates(self):
        return self._ring.lost_updates

    @lost_updates.setter
    def lost_updates(self, uint64_t value):
        self._ring.lost_updates = value

    cdef pe_status _copy_out(self, const int64_t *refs, uint64_t rows, uint8_t **targets,
                             pe_fault *fault) noexcept nogil:
        """Gather into outputs by target. Shared lock held."""
        cdef pe_gather_targets wanted
        wanted.fields = targets
        wanted.mutables = targets + self._ring.field_count
        wanted.stacks = wanted.mutables + self._ring.mutable_count
        return pe_ring_gather_spans(&self._ring, refs, rows, &wanted, fault)

    def gather(self, int64_t[::1] refs, list outputs, bint draw=False, float[::1] weights=None,
               double beta=0):
        """Fill `outputs` (one writable C-contiguous buffer a field, or None); draw first if asked.

        With `weights` the draw is by priority, and fills them.
        """
        self._gather(refs, outputs, NULL, draw, False,
                     self._weights_of(weights, refs.shape[0]), beta)

    cdef float *_weights_of(self, float[::1] weights, Py_ssize_t rows) except? NULL:
        if weights is None or rows == 0:
            return NULL
        if self._ring.priorities == NULL or weights.shape[0] != rows:
            raise ValueError("one weight for each row of a ring with priorities")
        return &weights[0]

    cdef pe_status _draw(self, uint64_t rows, int64_t *refs, float *weights,
                         double beta) noexcept nogil:
        """Fill refs, and weights where there are any; with the shared lock."""
        cdef pe_status status
        pthread_mutex_lock(&self._ring.draw)
        if weights != NULL:
            status = pe_priorities_draw(&self._ring, rows, beta, refs, weights)
        else:
            status = pe_ring_draw_valid(&self._ring, rows, refs)
        pthread_mutex_unlock(&self._ring.draw)
        return status

    def gather_exact(self, refs, dict outputs, kind, tuple tensors, bint draw,
                     float[::1] weights=None, double beta=0):
        """Gather into a flat dict of outputs that have exactly the schema's shapes and dtypes.

        False: something needs a closer look, and nothing was done. `kind` is the type of array;
        `tensors` (or None) the type of tensor, then (dtype, shape) of each field. `weights` as for
        `gather`.
        """
        cdef Py_buffer views[STACK_FIELDS]
        cdef uint8_t *targets[STACK_FIELDS]
        cdef int held = 0, given = 0, i, at
        cdef uint64_t rows, whole_bytes = 0
        cdef float *weighed
        cdef PyObject *item
        cdef pe_status status
        cdef pe_fault fault
        cdef list kept = None  # tensors: no other thread may free them meanwhile
        # There is one target that nobody gives, the start field's: its view is that of the refs.
        if self._dead or not self._open or self._targets > STACK_FIELDS or type(refs) is not kind:
            return False
        try:
            if not _take(refs, &views[0]):
                return False
            held = 1
            if views[0].ndim != 1 or not _is_char(&views[0], b'l') or (draw and views[0].readonly):
                return False
            rows = <uint64_t>views[0].shape[0]
            for i in range(self._targets):
                targets[i] = NULL
            for i in range(self._total):
                at = self._given[i].target
                item = PyDict_GetItem(outputs, self._names[i])
                if item == NULL:
                    continue
                given += 1
                value = <object>item
                if type(value) is kind:
                    if not _take(value, &views[held]):
                        return False
                    held += 1
                    if views[held - 1].readonly or not self._holds(&views[held - 1], i, rows):
                        return False
                    targets[at] = <uint8_t *>views[held - 1].buf
                elif tensors is not None:
                    targets[at] = _tensor_target(value, <type>tensors[0], <tuple>tensors[i + 1],
                                                 rows)
                    if kept is None:
                        kept = []
                    kept.append(value)
                if targets[at] == NULL:
                    return False
                whole_bytes += rows * self._given[i].row_bytes
            if given != len(outputs) or rows == 0:
                return False
            weighed = self._weights_of(weights, rows)
            status = self._fill(<int64_t *>views[0].buf, rows, targets, draw, weighed, beta,
                                whole_bytes, &fault)
            if status == PE_CLOSED:
                return False
            _report(status, &fault)
            return True
        finally:
            for i in range(held):
                PyBuffer_Release(&views[i])

    cdef pe_status _fill(self, int64_t *refs, uint64_t rows, uint8_t **targets, bint draw,
                         float *weights, double beta, uint64_t whole_bytes,
                         pe_fault *fault) noexcept:
        """Draw, where asked, and gather; without the GIL unless that costs more than it gives.

        A thread that is at work in Python keeps the GIL for 5 ms before it lets this one go on.
        """
        cdef pe_status status
        if whole_bytes < RELEASE_GIL_BYTES and pe_ring_try_lock_shared(&self._ring):
            if self._ring.file_count == 0:  # no read waits for a disk
                status = self._fill_locked(refs, rows, targets, draw, weights, beta, fault)
                pe_ring_unlock(&self._ring)
                return status
            pe_ring_unlock(&self._ring)
        with nogil:
            status = pe_ring_lock_shared(&self._ring)
            if status == PE_OK:
                status = self._fill_locked(refs, rows, targets, draw, weights, beta, fault)
                pe_ring_unlock(&self._ring)
        return status

    cdef pe_status _fill_locked(self, int64_t *refs, uint64_t rows, uint8_t **targets, bint draw,
                                float *weights, double beta,
                                pe_fault *fault) noexcept nogil:
        cdef pe_status status = PE_OK
        if draw:
            status = self._draw(rows, refs, weights, beta)
        if status == PE_OK:
            status = self._copy_out(refs, rows, targets, fault)
        return status

    cdef bint _holds(self, const Py_buffer *view, int field, uint64_t rows) noexcept:
        """Whether a buffer has the shape (rows, *shape) of a field, and its dtype."""
        return (view.ndim == self._given[field].dimensions + 1
                and self._fits(view, field, 1, rows, False))

    def gather_at(self, int64_t[::1] positions, int64_t[::1] refs, list outputs, bint compact):
        """Fill `refs` (-1: no valid row) and the outputs, all of one instant.

        `compact`: the first rows of the outputs are those of the valid refs, in order; return how
        many. Else a position without a valid row is an unknown ref.
        """
        if refs.shape[0] != positions.shape[0]:
            raise ValueError("one ref for each position")
        if refs.shape[0] == 0:
            return 0
        return self._gather(refs, outputs, &positions[0], False, compact)

    cdef uint64_t _gather(self, int64_t[::1] refs, list outputs, const int64_t *positions,
                          bint draw, bint compact, float *weights=NULL,
                          double beta=0) except? 0:
        cdef Py_buffer *views
        cdef uint8_t **targets
        cdef int64_t *valid = NULL
        cdef int held = 0, i, count = len(outputs)
        cdef uint64_t rows = refs.shape[0], found = rows, row
        cdef int64_t *first = &refs[0] if rows else NULL
        cdef int64_t *wanted = first
        cdef pe_status status = PE_OK
        cdef pe_fault fault
        self._check()
        if count != self._total:
            raise ValueError("one output for each field")
        views = <Py_buffer *>calloc(count + 1, sizeof(Py_buffer))
        targets = <uint8_t **>calloc(self._targets, sizeof(uint8_t *))
        if compact:
            wanted = valid = <int64_t *>calloc(rows + 1, sizeof(int64_t))
        try:
            if views == NULL or targets == NULL or (compact and valid == NULL):
                raise MemoryError
            for i in range(count):
                output = outputs[i]
                if output is None:
                    continue
                PyObject_GetBuffer(output, &views[held], PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)
                held += 1
                if <uint64_t>views[held - 1].len != self._given[i].row_bytes * rows:
                    raise ValueError(f"output {i}: {views[held - 1].len} bytes do not fit the rows")
                targets[self._given[i].target] = <uint8_t *>views[held - 1].buf
            with nogil:
                status = pe_ring_lock_shared(&self._ring)
                if status == PE_OK:
                    if draw:
                        status = self._draw(rows, first, weights, beta)
                    if positions != NULL:
                        pe_ring_refs_at(&self._ring, positions, rows, first)
                    if compact:
                        found = 0
                        for row in range(rows):
                            if first[row] >= 0:
                                valid[found] = first[row]
                                found += 1
                    if status == PE_OK:
                        status = self._copy_out(wanted, found, targets, &fault)
                    pe_ring_unlock(&self._ring)
            _report(status, &fault)
            return found
        finally:
            for i in range(held):
                PyBuffer_Release(&views[i])
            free(views)
            free(targets)
            free(valid)

    def refs_at(self, int64_t[::1] positions, int64_t[::1] refs):
        self._lock_shared()
        if positions.shape[0]:
            pe_ring_refs_at(&self._ring, &positions[0], positions.shape[0], &refs[0])
        pe_ring_unlock(&self._ring)

    def update(self, int64_t[::1] refs, list values):
        """values: a buffer a mutable field, with a value for each ref or one for all; None: stays."""
        cdef pe_source *sources
        cdef Py_buffer *views
        cdef pe_status status
        cdef pe_fault fault
        cdef int held = 0, i, count = len(values)
        cdef uint64_t lost = 0, rows = refs.shape[0], row_bytes
        self._check()
        if count != <int>self._ring.mutable_count:
            raise ValueError("one value for each mutable field")
        if rows == 0:
            return 0
        views = <Py_buffer *>calloc(count + 1, sizeof(Py_buffer))
        sources = <pe_source *>calloc(count + 1, sizeof(pe_source))
        try:
            if views == NULL or sources == NULL:
                raise MemoryError
            for i in range(count):
                value = values[i]
                if value is None:
                    continue
                row_bytes = self._mutables[i].row_bytes
                PyObject_GetBuffer(value, &views[held], PyBUF_C_CONTIGUOUS)
                held += 1
                if <uint64_t>views[held - 1].len not in (row_bytes, row_bytes * rows):
                    raise ValueError(f"{views[held - 1].len} bytes do not fit {rows} rows")
                sources[i].data = <const uint8_t *>views[held - 1].buf
                if <uint64_t>views[held - 1].len == row_bytes * rows:
                    sources[i].step_bytes = row_bytes
            with nogil:
                status = pe_ring_lock(&self._ring)
                if status == PE_OK:
                    status = pe_ring_update(&self._ring, &refs[0], rows, sources, &lost, &fault)
                    pe_ring_unlock(&self._ring)
            _report(status, &fault)
            return lost
        finally:
            for i in range(held):
                PyBuffer_Release(&views[i])
            free(views)
            free(sources)

    def assign(self, uint32_t field, uint64_t item_bytes, int64_t first, int64_t step,
               uint64_t count, int64_t[::1] places, values):
        """Overwrite items of one mutable field; `values` has one for each item or one for all."""
        cdef pe_items items
        cdef pe_status status
        cdef pe_fault fault
        cdef Py_buffer view
        cdef int64_t end
        cdef uint64_t i
        self._check()
        if field >= self._ring.mutable_count or item_bytes == 0:
            raise ValueError("no such field or items")
        if places is not None and <uint64_t>places.shape[0] != count:
            raise ValueError("one place for each item")
        if count == 0:
            return
        end = <int64_t>(self._capacity * self._mutables[field].row_bytes // item_bytes)
        items.places = NULL if places is None else &places[0]
        items.first, items.step = first, step
        items.count, items.item_bytes = count, item_bytes
        if places is None:
            if not 0 <= first < end or not 0 <= first + (count - 1) * <object>step < end:
                raise ValueError("the items leave the field")
        for i in range(count if places is not None else 0):
            if not 0 <= places[i] < end:
                raise ValueError("the items leave the field")
        PyObject_GetBuffer(values, &view, PyBUF_C_CONTIGUOUS)
        try:
            if <uint64_t>view.len not in (item_bytes, item_bytes * count):
                raise ValueError(f"{view.len} bytes do not fit {count} items")
            with nogil:
                status = pe_ring_lock(&self._ring)
                if status == PE_OK:
                    status = pe_ring_assign(
                        &self._ring, field, &items, <const uint8_t *>view.buf,
                        item_bytes if <uint64_t>view.len != item_bytes else 0, &fault)
                    pe_ring_unlock(&self._ring)
            _report(status, &fault)
        finally:
            PyBuffer_Release(&view)
