"""Copies of many ranges of memory, worked off by several threads. See copying.pyi."""

from libc.stdint cimport uint8_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc

cdef extern from "copy_job.h" nogil:
    struct pe_copy:
        uint8_t *target
        const uint8_t *source
        uint64_t end

    struct pe_copy_job:
        pass

    void pe_copy_job_init(pe_copy_job *job, const pe_copy *copies, size_t count)
    void pe_copy_job_work(pe_copy_job *job)
    void pe_copy_job_stop(pe_copy_job *job)
    bint pe_copy_job_wait(pe_copy_job *job)


cdef class CopyJob:
    cdef pe_copy *_copies
    cdef pe_copy_job _job
    cdef readonly uint64_t size_bytes

    def __cinit__(self, const uint64_t[::1] targets, const uint64_t[::1] sources,
                  const uint64_t[::1] sizes):
        cdef Py_ssize_t i
        cdef size_t count = 0
        cdef uint64_t end = 0
        self._copies = NULL
        if not targets.shape[0] == sources.shape[0] == sizes.shape[0]:
            raise ValueError("a target, a source and a size for each range")
        self._copies = <pe_copy *>malloc(max(1, targets.shape[0]) * sizeof(pe_copy))
        if self._copies == NULL:
            raise MemoryError
        for i in range(targets.shape[0]):
            if sizes[i] == 0:
                continue
            end += sizes[i]
            self._copies[count].target = <uint8_t *><uintptr_t>targets[i]
            self._copies[count].source = <const uint8_t *><uintptr_t>sources[i]
            self._copies[count].end = end
            count += 1
        pe_copy_job_init(&self._job, self._copies, count)
        self.size_bytes = end

    def __dealloc__(self):
        # Who works or waits holds a reference, so that nobody can be inside.
        free(self._copies)

    def work(self):
        with nogil:
            pe_copy_job_work(&self._job)

    def stop(self):
        pe_copy_job_stop(&self._job)

    def wait(self):
        cdef bint is_whole
        with nogil:
            is_whole = pe_copy_job_wait(&self._job)
        return is_whole
