# Priorities of a ring's rows: kept, changed by ref, and looked at. Draws are in ring_read.pxi.

from cpython.buffer cimport PyBuffer_Release, PyObject_CheckBuffer
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc

from ring_native cimport (
    PE_OK, pe_fault, pe_priorities_open, pe_priorities_settle, pe_priorities_store,
    pe_priority_rule, pe_ring_lock, pe_ring_unlock, pe_ring_update, pe_source, pe_status,
    pthread_mutex_lock, pthread_mutex_unlock,
)


cdef class RingPriorities(RingRead):
    def keep_priorities(self, uint32_t field, double alpha, double epsilon, bint is_stratified,
                        bint is_by_batch):
        """Keep the rows' priorities in mutable field `field` (float32); before anybody else calls."""
        cdef pe_priority_rule *rule = &self._priorities.rule
        self._check()
        if field >= self._ring.mutable_count or self._mutables[field].row_bytes != 4:
            raise ValueError("priorities are kept in a float32 field")
        if self._ring.priorities != NULL:
            raise ValueError("the ring keeps priorities already")
        rule.field, rule.alpha, rule.epsilon = field, alpha, epsilon
        rule.is_stratified, rule.is_by_batch = is_stratified, is_by_batch
        _report(pe_priorities_open(&self._ring, &self._priorities), NULL)

    cdef int _check_priorities(self) except -1:
        self._check()
        if self._ring.priorities == NULL:
            raise ValueError("the ring keeps no priorities")
        return 0

    @property
    def highest_priority(self):
        cdef float highest
        self._check_priorities()
        pthread_mutex_lock(&self._ring.draw)
        highest = self._priorities.highest
        pthread_mutex_unlock(&self._ring.draw)
        return highest

    @highest_priority.setter
    def highest_priority(self, float highest):
        self._check_priorities()
        self._lock()
        pthread_mutex_lock(&self._ring.draw)
        self._priorities.highest = highest
        pthread_mutex_unlock(&self._ring.draw)
        pe_ring_unlock(&self._ring)

    @property
    def draws(self):
        cdef uint64_t draws
        self._check_priorities()
        pthread_mutex_lock(&self._ring.draw)
        draws = self._priorities.draws
        pthread_mutex_unlock(&self._ring.draw)
        return draws

    @draws.setter
    def draws(self, uint64_t draws):
        self._check_priorities()
        pthread_mutex_lock(&self._ring.draw)
        self._priorities.draws = draws
        pthread_mutex_unlock(&self._ring.draw)

    def update_priorities(self, refs, priorities):
        """Store a new priority for each ref; return how many had left the window.

        Takes int64 refs and float32 priorities, each in one piece; None: they are something else.
        """
        cdef Py_buffer views[2]
        cdef int held = 0, i
        cdef uint64_t rows, lost = 0
        cdef float *stored = NULL
        cdef pe_source *sources = NULL
        cdef pe_status status
        cdef pe_fault fault
        self._check_priorities()
        try:
            for value in (refs, priorities):
                if not PyObject_CheckBuffer(value) or not _take(value, &views[held]):
                    return None
                held += 1
                if views[held - 1].ndim != 1 or not _is_char(
                        &views[held - 1], b'l' if held == 1 else b'f'):
                    return None
            rows = views[0].shape[0]
            if <uint64_t>views[1].shape[0] != rows:
                return None
            if rows == 0:
                return 0
            stored = <float *>malloc(rows * sizeof(float))
            sources = <pe_source *>calloc(self._ring.mutable_count, sizeof(pe_source))
            if stored == NULL or sources == NULL:
                raise MemoryError
            i = <int>self._priorities.rule.field
            sources[i].data, sources[i].step_bytes = <const uint8_t *>stored, sizeof(float)
            with nogil:
                status = pe_priorities_store(self._priorities.rule.epsilon,
                                             <const float *>views[1].buf, rows, stored, &fault)
                if status == PE_OK:
                    status = pe_ring_lock(&self._ring)
                    if status == PE_OK:
                        status = pe_ring_update(&self._ring, <const int64_t *>views[0].buf, rows,
                                                sources, &lost, &fault)
                        pe_ring_unlock(&self._ring)
            _report(status, &fault)
            return lost
        finally:
            for i in range(held):
                PyBuffer_Release(&views[i])
            free(stored)
            free(sources)

    def priority_tree(self):
        """What the tree holds now, level by level from the leaves: bytes of (sums, minima)."""
        cdef uint32_t level
        cdef uint64_t size
        cdef list levels = []
        self._check_priorities()
        self._lock()
        try:
            pe_priorities_settle(&self._ring)
            for level in range(self._priorities.tree.height + 1):
                size = self._priorities.tree.widths[level] * sizeof(double)
                levels.append((
                    (<uint8_t *>self._priorities.tree.sums[level])[:size],
                    (<uint8_t *>self._priorities.tree.lows[level])[:size],
                ))
            return levels
        finally:
            pe_ring_unlock(&self._ring)
