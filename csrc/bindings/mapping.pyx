"""Own one memory mapping: shared memory to write, or a file to read. See mapping.pyi."""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.errno cimport errno
from libc.stdint cimport uint8_t, uintptr_t

import os

cdef extern from "<sys/mman.h>" nogil:
    void *mmap(void *address, size_t length, int protection, int flags, int fd, long offset)
    int munmap(void *address, size_t length)
    int madvise(void *address, size_t length, int advice)
    void *MAP_FAILED
    int PROT_READ, PROT_WRITE, MAP_SHARED
    int MADV_DONTFORK, MADV_RANDOM

cdef extern from "pages.h" nogil:
    void pe_pages_ask(void *pages, size_t bytes)
    int pe_pages_reserve(int fd, long offset, long bytes)

# Linux 5.14; absent from older headers.
cdef int POPULATE_READ = 22
cdef int POPULATE_WRITE = 23


cdef class Mapping:
    cdef uint8_t *_start
    cdef size_t _bytes
    cdef bint _writable
    cdef Py_ssize_t _exports

    def __cinit__(self):
        self._start = NULL
        self._bytes = 0
        self._writable = False
        self._exports = 0

    def __dealloc__(self):
        # Views hold a reference, so that none can be left here.
        if self._start != NULL:
            munmap(self._start, self._bytes)

    @staticmethod
    def shared(int fd, size_t size):
        cdef Mapping self = _map(fd, size, PROT_READ | PROT_WRITE)
        self._writable = True
        madvise(self._start, size, MADV_DONTFORK)
        return self

    @staticmethod
    def file(int fd, size_t size):
        cdef Mapping self = _map(fd, size, PROT_READ)
        madvise(self._start, size, MADV_RANDOM)
        return self

    @property
    def address(self):
        return <uintptr_t>self._start

    @property
    def size(self):
        return self._bytes

    @property
    def closed(self):
        return self._start == NULL

    def populate(self, size_t offset, size_t length, bint write=False):
        cdef int result
        cdef int advice = POPULATE_WRITE if write else POPULATE_READ
        self._check(offset, length)
        with nogil:
            result = madvise(self._start + offset, length, advice)
        if result != 0:
            raise OSError(errno, os.strerror(errno))

    def advise_willneed(self, size_t offset, size_t length):
        self._check(offset, length)
        with nogil:
            pe_pages_ask(self._start + offset, length)

    def close(self):
        if self._exports:
            raise BufferError("the mapping cannot be closed while views of it are in use")
        if self._start != NULL:
            munmap(self._start, self._bytes)
            self._start = NULL
            self._bytes = 0

    def disarm(self):
        self._start = NULL
        self._bytes = 0

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def __len__(self):
        return self._bytes

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        if self._start == NULL:
            raise ValueError("the mapping is closed")
        PyBuffer_FillInfo(buffer, self, self._start, self._bytes, not self._writable, flags)
        self._exports += 1

    def __releasebuffer__(self, Py_buffer *buffer):
        self._exports -= 1

    cdef int _check(self, size_t offset, size_t length) except -1:
        if self._start == NULL:
            raise ValueError("the mapping is closed")
        if offset > self._bytes or length > self._bytes - offset:
            raise ValueError(f"[{offset}, {offset + length}) leaves a mapping of {self._bytes} bytes")
        return 0


def reserve(int fd, long offset, long length):
    cdef int error
    with nogil:
        error = pe_pages_reserve(fd, offset, length)
    if error != 0:
        raise OSError(error, os.strerror(error))


cdef Mapping _map(int fd, size_t size, int protection):
    cdef Mapping self = Mapping.__new__(Mapping)
    cdef void *start
    if size == 0:
        raise ValueError("an empty mapping is not possible")
    start = mmap(NULL, size, protection, MAP_SHARED, fd, 0)
    if start == MAP_FAILED:
        raise OSError(errno, os.strerror(errno))
    self._start = <uint8_t *>start
    self._bytes = size
    return self
