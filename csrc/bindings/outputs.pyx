"""Arrays over memory that is used again. See outputs.pyi."""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

cdef extern from "outputs.h":
    enum:
        PE_OUTPUT_ALIGNMENT
    struct pe_outputs:
        uint64_t idle_bytes, live_bytes
    void pe_outputs_turn(pe_outputs *outputs)
    uint8_t *pe_outputs_take(pe_outputs *outputs, uint64_t bytes)
    void pe_outputs_give(pe_outputs *outputs, uint8_t *start, uint64_t bytes)
    void pe_outputs_close(pe_outputs *outputs)

cdef enum:
    # Fields from here on have a piece of their own, the others of a batch share one: who keeps the
    # rewards of a batch keeps no images, and a batch of small fields costs one piece.
    OWN_PIECE_BYTES = 65536

# What a batch may take; far beyond any memory, far below an overflow.
cdef uint64_t BATCH_BYTES_MAX = <uint64_t>1 << 62


@cython.final
@cython.no_gc
cdef class OutputPiece:
    """Owns a piece until the last array, tensor or view of it is gone."""

    cdef OutputPool _pool
    cdef uint8_t *_start
    cdef uint64_t _bytes

    def __cinit__(self):
        self._start = NULL

    def __dealloc__(self):
        if self._start != NULL:
            pe_outputs_give(&self._pool._outputs, self._start, self._bytes)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self._start, self._bytes, False, flags)


@cython.final
@cython.no_gc
cdef class OutputPool:
    cdef pe_outputs _outputs
    cdef object _array
    cdef tuple _names
    cdef tuple _shapes
    cdef tuple _dtypes
    cdef uint64_t *_row_bytes

    def __cinit__(self, array, tuple names, tuple shapes, tuple dtypes, tuple row_bytes):
        cdef Py_ssize_t i
        memset(&self._outputs, 0, sizeof(pe_outputs))
        self._array = array
        self._names, self._shapes, self._dtypes = names, shapes, dtypes
        self._row_bytes = <uint64_t *>calloc(len(names) + 1, sizeof(uint64_t))
        if self._row_bytes == NULL:
            raise MemoryError
        for i in range(len(names)):
            self._row_bytes[i] = row_bytes[i]

    def __dealloc__(self):
        # Every piece holds the pool: none is left.
        pe_outputs_close(&self._outputs)
        free(self._row_bytes)

    def arrays(self, uint64_t rows):
        cdef dict made = {}
        cdef OutputPiece shared = None, piece
        cdef uint64_t own, small = 0, offset = 0
        cdef Py_ssize_t i
        for i in range(len(self._names)):
            own = self._row_bytes[i]
            if own and rows > BATCH_BYTES_MAX // own:
                raise MemoryError(f"{rows} rows of {own} bytes")
            if rows * own < OWN_PIECE_BYTES:
                small += _aligned(rows * own)
        pe_outputs_turn(&self._outputs)
        if small:
            shared = self._take(small)
        for i in range(len(self._names)):
            own = rows * self._row_bytes[i]
            if own < OWN_PIECE_BYTES:
                made[self._names[i]] = self._array(
                    (rows, *<tuple>self._shapes[i]), self._dtypes[i], shared, offset)
                offset += _aligned(own)
            else:
                piece = self._take(own)
                made[self._names[i]] = self._array(
                    (rows, *<tuple>self._shapes[i]), self._dtypes[i], piece)
        return made

    cdef OutputPiece _take(self, uint64_t size):
        cdef OutputPiece piece = OutputPiece.__new__(OutputPiece)
        piece._pool, piece._bytes = self, size
        piece._start = pe_outputs_take(&self._outputs, size)
        if piece._start == NULL:
            raise MemoryError(f"{size} bytes for a batch")
        return piece

    @property
    def idle_bytes(self):
        return self._outputs.idle_bytes

    @property
    def live_bytes(self):
        return self._outputs.live_bytes

    def close(self):
        pe_outputs_close(&self._outputs)


cdef inline uint64_t _aligned(uint64_t size) noexcept:
    return (size + PE_OUTPUT_ALIGNMENT - 1) & ~<uint64_t>(PE_OUTPUT_ALIGNMENT - 1)
