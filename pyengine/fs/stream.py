"""One pass over a new file: written in chunks of 8 MiB, each hashed while it is in the cache.

Large files go out by O_DIRECT. Memory that is not aligned passes through a bounce buffer, and a
tail shorter than a page is written buffered. Where the file system refuses O_DIRECT everything is
buffered, flushed every 64 MiB so that a burst of dirty pages never stalls the machine.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
from collections.abc import Iterator, Sequence

import xxhash

from pyengine.config import PAGE_BYTES
from pyengine.fs import door
from pyengine.fs.door import Buffer

CHUNK_BYTES = 8 * 1024 * 1024
"""Size of one write, and of what is hashed at a time."""

_BYPASS_BYTES = 16 * PAGE_BYTES
_FLUSH_BYTES = 64 * 1024 * 1024


class _Stream:
    """The end of the file being written: direct while the kernel accepts it, buffered after."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._unflushed = 0
        self.offset = 0
        self.is_direct = bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT)

    def put(self, view: memoryview) -> bool:
        """Write `view`. False: refused for its memory or size alignment, nothing was written."""
        try:
            door.active.pwrite(self._fd, view, self.offset)
        except OSError as error:
            if error.errno == errno.EINVAL and self.is_direct:
                return False
            raise
        self.offset += len(view)
        if not self.is_direct:
            self._unflushed += len(view)
            if self._unflushed >= _FLUSH_BYTES:
                door.active.fdatasync(self._fd)
                self._unflushed = 0
        return True

    def go_buffered(self) -> None:
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        fcntl.fcntl(self._fd, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        self.is_direct = False


def write_pieces(fd: int, pieces: Sequence[Buffer], *, hashed: bool) -> int:
    """Write `pieces`, one after the other, to a new file; return the XXH3-64 of all, or 0.

    Direct where the descriptor is and as far as memory and kernel allow. Not durable. OSError.
    """
    stream = _Stream(fd)
    digest = xxhash.xxh3_64()
    with contextlib.ExitStack() as stack:
        bounce: _Bounce | None = None
        for chunk in _chunks(pieces):
            if hashed:
                digest.update(chunk)
            if stream.is_direct:
                bounce = bounce or stack.enter_context(contextlib.closing(_Bounce(stream)))
                bounce.put(chunk)
            else:
                stream.put(chunk)
        if bounce is not None:
            bounce.flush_tail()
    return int(digest.intdigest()) if hashed else 0


def _chunks(pieces: Sequence[Buffer]) -> Iterator[memoryview]:
    for piece in pieces:
        view = memoryview(piece).cast("B")
        for start in range(0, len(view), CHUNK_BYTES):
            yield view[start : start + CHUNK_BYTES]


class _Bounce:
    """Page-aligned memory in front of a direct stream; aligned chunks go past it.

    Once the kernel has refused the memory of one chunk, the rest of the file goes through here.
    """

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream
        self._memory: mmap.mmap | None = None
        self._filled = 0
        self._refused = False

    def put(self, chunk: memoryview) -> None:
        if self._filled % PAGE_BYTES == 0 and len(chunk) >= _BYPASS_BYTES and not self._refused:
            self._flush()
            whole = len(chunk) - len(chunk) % PAGE_BYTES
            if self._stream.put(chunk[:whole]):
                chunk = chunk[whole:]
            else:
                self._refused = True
        while len(chunk):
            memory = self._buffer()
            taken = min(len(chunk), CHUNK_BYTES - self._filled)
            memory[self._filled : self._filled + taken] = chunk[:taken]
            self._filled += taken
            chunk = chunk[taken:]
            if self._filled == CHUNK_BYTES:
                self._flush()

    def flush_tail(self) -> None:
        """Write what is left; a tail shorter than a page cannot be direct."""
        tail = self._filled % PAGE_BYTES
        memory = self._buffer() if self._filled else None
        whole = self._filled - tail
        if memory is not None and whole:
            self._write(memoryview(memory)[:whole])
        if memory is not None and tail:
            self._stream.go_buffered()
            self._write(memoryview(memory)[whole : whole + tail])
        self._filled = 0

    def close(self) -> None:
        if self._memory is not None:
            with contextlib.suppress(BufferError):
                self._memory.close()

    def _flush(self) -> None:
        if self._filled:
            self._write(memoryview(self._buffer())[: self._filled])
            self._filled = 0

    def _write(self, view: memoryview) -> None:
        if not self._stream.put(view):
            self._stream.go_buffered()
            self._stream.put(view)

    def _buffer(self) -> mmap.mmap:
        if self._memory is None:
            self._memory = mmap.mmap(-1, CHUNK_BYTES)
        return self._memory
