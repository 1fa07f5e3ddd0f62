"""XXH3-64 for native code, and the block tables of images. See hashing.pyi.

The xxhash package's extension exports the whole XXH3 interface with run-time AVX2 dispatch, so the
function is taken from there: no header, no vendored source, one implementation in the process. The
package does not promise those exports, hence the comparison at import and the slower way round.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AsString
from libc.stdint cimport int64_t, uint8_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc

import xxhash
import xxhash._xxhash

cdef extern from "hash.h" nogil:
    ctypedef uint64_t (*pe_hash_function)(const void *data, size_t bytes) noexcept
    void pe_hash_bind(pe_hash_function function, bint is_native)
    uint64_t pe_hash(const void *data, size_t bytes)
    pe_hash_function pe_hash_find(const char *path)
    bint pe_image_is_sound(const uint8_t *image, uint64_t bytes)
    uint64_t pe_image_seal(uint8_t *image, uint8_t *scratch)
    int64_t pe_image_verify(const uint8_t *image)
    uint64_t pe_blocks_verify(const uint8_t *data, const uint64_t *sizes, const uint64_t *expected,
                              uint64_t count)

cdef extern from "format.h" nogil:
    struct pe_segment_header:
        unsigned int header_bytes
        uint64_t file_bytes
        uint64_t block_table_offset

cdef Py_ssize_t RELEASE_GIL_BYTES = 32768

cdef pe_hash_function _function = NULL
_binding = "package"


cdef uint64_t _through_package(const void *data, size_t count) noexcept with gil:
    return xxhash.xxh3_64_intdigest((<const uint8_t[:count]>data) if count else b"")


def _bind():
    global _function, _binding
    cdef pe_hash_function found = pe_hash_find(PyBytes_AsString(xxhash._xxhash.__file__.encode()))
    cdef bytes sample = bytes(range(256)) * 5
    cdef bint same = found != NULL
    if same:
        for size in (0, 1, 3, 8, 16, 100, 128, 200, 240, 241, 1024, 1280):
            same = same and found(PyBytes_AsString(sample), size) == xxhash.xxh3_64_intdigest(sample[:size])
    if same:
        _function = found
        _binding = "direct"
    else:
        _function = _through_package
    pe_hash_bind(_function, same)


_bind()


def binding():
    return _binding


def function_address():
    return <uintptr_t>_function


def xxh3_64(data):
    cdef Py_buffer view
    cdef uint64_t result
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if view.len >= RELEASE_GIL_BYTES:
            with nogil:
                result = pe_hash(view.buf, view.len)
        else:
            result = pe_hash(view.buf, view.len)
        return result
    finally:
        PyBuffer_Release(&view)


cdef int _check_image(Py_buffer *view) except -1:
    if <size_t>view.buf % 8 or not pe_image_is_sound(<const uint8_t *>view.buf, view.len):
        raise ValueError("the buffer does not hold the image that its header describes")
    return 0


def seal_image(image):
    cdef Py_buffer view
    cdef uint64_t checksum
    cdef uint8_t *scratch
    cdef const pe_segment_header *header
    PyObject_GetBuffer(image, &view, PyBUF_WRITABLE)
    try:
        _check_image(&view)
        header = <const pe_segment_header *>view.buf
        scratch = <uint8_t *>malloc(
            header.header_bytes + (header.file_bytes - header.block_table_offset))
        if scratch == NULL:
            raise MemoryError
        with nogil:
            checksum = pe_image_seal(<uint8_t *>view.buf, scratch)
        free(scratch)
        return checksum
    finally:
        PyBuffer_Release(&view)


def verify_image(image):
    cdef Py_buffer view
    cdef int64_t block
    PyObject_GetBuffer(image, &view, PyBUF_SIMPLE)
    try:
        _check_image(&view)
        with nogil:
            block = pe_image_verify(<const uint8_t *>view.buf)
        return block
    finally:
        PyBuffer_Release(&view)


def find_bad_block(data, const uint64_t[::1] sizes, const uint64_t[::1] expected):
    cdef Py_buffer view
    cdef uint64_t good, total = 0, count = sizes.shape[0]
    cdef Py_ssize_t i
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        for i in range(sizes.shape[0]):
            if sizes[i] > <uint64_t>view.len - total:
                raise ValueError("the blocks leave the buffer")
            total += sizes[i]
        if expected.shape[0] != sizes.shape[0]:
            raise ValueError("one expected hash for each block")
        if count == 0:
            return -1
        with nogil:
            good = pe_blocks_verify(<const uint8_t *>view.buf, &sizes[0], &expected[0], count)
        return -1 if good == count else <int64_t>good
    finally:
        PyBuffer_Release(&view)
