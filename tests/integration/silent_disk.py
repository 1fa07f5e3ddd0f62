"""A file system that never answers: what asks it for a name waits in the kernel, past SIGKILL.

A FUSE mount of our own without a server behind it but this: it says that it is there, reads each
request, and leaves it. A request that was read cannot be taken back, so that who made it sleeps
uninterruptibly, as before a dead network disk, until the connection is closed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import threading
from pathlib import Path

_IN_HEADER = struct.Struct("<IIQQIIII")
_OUT_HEADER = struct.Struct("<IiQ")
_INIT_ANSWER = struct.Struct("<IIIIHHIIHHI7I")
_INIT = 26
_LOOKUP = 1
_PROTOCOL = (7, 31)
_REQUEST_BYTES = 65536
_MNT_FORCE, _MNT_DETACH = 1, 2


def why_not() -> str | None:
    """Return why there can be none here, or None."""
    if os.geteuid() != 0:
        return "mounting needs root"
    if not os.path.exists("/dev/fuse"):
        return "there is no FUSE here"
    return None


class SilentDisk:
    """Mounted at `path` while its block runs; `asked` is set once somebody waits for a name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.asked = threading.Event()
        self._libc = ctypes.CDLL(None, use_errno=True)

    def __enter__(self) -> SilentDisk:
        self.path.mkdir()
        self._fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._fd},rootmode=40000,user_id=0,group_id=0".encode()
        if self._libc.mount(b"silent", os.fsencode(self.path), b"fuse.silent", 0, options):
            number = ctypes.get_errno()
            os.close(self._fd)
            raise OSError(number, os.strerror(number), os.fspath(self.path))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Force gives up every request: who waits dies at last, and the thread's read ends.
        for flags in (_MNT_FORCE, _MNT_DETACH):
            self._libc.umount2(os.fsencode(self.path), flags)
        self._thread.join()
        os.close(self._fd)

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                request = os.read(self._fd, _REQUEST_BYTES)
                _, opcode, unique, *_ = _IN_HEADER.unpack_from(request)
                if opcode == _INIT:
                    body = _INIT_ANSWER.pack(*_PROTOCOL, *(0,) * 4, 4096, 1, *(0,) * 10)
                    size = _OUT_HEADER.size + len(body)
                    os.write(self._fd, _OUT_HEADER.pack(size, 0, unique) + body)
                elif opcode == _LOOKUP:
                    self.asked.set()
