"""The control channel: small msgpack messages and file descriptors over a pair of Unix sockets.

Messages wake and explain; nothing depends on one arriving except the descriptors that travel with
it, and those are sent again to a restarted writer. Sending never blocks longer than asked: a
stopped writer must not stop the trainer. A message that is too large for the socket (a schema of
many fields) travels as a memfd, the last of its descriptors.

trainer -> writer
    hello {run_dir, generation, keep_last, keep_best, keep_best_mode, size}
                   fds: control arena, and where it could be taken the lock on the writer's byte of
                   the claim
    ring {name, size, schema}                                            fds: arena, seal eventfd
    staging {index, version, size}                                       fds: staging arena
    wake {}        a snapshot was staged or cancelled
    warm {ring}    read and verify the mapped files of a restored ring, when there is nothing else;
                   sent to each new writer until one has told `warmed`
    close {grace_seconds}

writer -> trainer
    ready {pid}    it holds its lock on the claim and takes snapshots up
    committed {sequence, name}   failed {sequence}   cancelled {sequence}
    warning {text}
    warmed {ring, segments, damaged}
    drained {complete}           last message before the exit that `close` asked for
"""

from __future__ import annotations

import array
import contextlib
import os
import select
import socket
import time
from collections.abc import Sequence
from typing import Any

import msgpack

from pyengine.errors import ClosedError
from pyengine.fs.forking import register_for_child

MAX_MESSAGE_BYTES = 256 * 1024 * 1024
"""Largest packed message."""

INLINE_BYTES = 64 * 1024
"""Largest one that goes through the socket itself."""

MAX_DESCRIPTORS = 8
"""Most descriptors that travel with one message."""

SEND_SECONDS = 5.0
"""How long `send` waits for room unless told otherwise."""

_ELSEWHERE = "packed_bytes"
"""Only key of a message whose body, of so many bytes, lies in the last descriptor."""

Message = dict[str, Any]


class Channel:
    """One end of the pair; owns its socket. A context manager, `close()` is idempotent.

    Messages keep their borders and their order. Safe for one sending and one receiving thread. In
    a forked child the socket is closed.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        register_for_child(self)

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Return the two ends of a new channel, both close-on-exec."""
        left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(left), cls(right)

    @classmethod
    def from_fd(cls, fd: int) -> Channel:
        """Take over an inherited descriptor; it becomes close-on-exec."""
        os.set_inheritable(fd, False)
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        """The socket's descriptor, for poll and for `pass_fds`; -1 once closed."""
        return self._socket.fileno()

    def send(
        self, kind: str, /, *, fds: Sequence[int] = (), timeout: float = SEND_SECONDS, **body: Any
    ) -> bool:
        """Send one message; False where the other side left no room for `timeout` seconds.

        The descriptors are duplicated into the message, the caller keeps his. Raises ClosedError
        where the other end is gone, OSError where there is no memory for a large message.
        """
        data = msgpack.packb({"kind": kind, **body})
        if len(data) > MAX_MESSAGE_BYTES or len(fds) > MAX_DESCRIPTORS:
            raise ValueError(f"message {kind!r}: {len(data)} bytes, {len(fds)} descriptors")
        if len(data) <= INLINE_BYTES:
            return self._send(data, fds, timeout)
        memory = _filled_memfd(data)
        try:
            return self._send(msgpack.packb({_ELSEWHERE: len(data)}), (*fds, memory), timeout)
        finally:
            os.close(memory)

    def _send(self, data: bytes, fds: Sequence[int], timeout: float) -> bool:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        deadline = time.monotonic() + timeout
        while True:
            try:
                self._socket.sendmsg([data], rights)
                return True
            except (BlockingIOError, InterruptedError):
                if not self._wait(select.POLLOUT, deadline):
                    return False
            except OSError as error:
                raise ClosedError(f"the other end of the channel is gone: {error}") from error

    def receive(self, timeout: float | None = None) -> tuple[Message, list[int]] | None:
        """Return the next message and its descriptors, which the caller owns; None after `timeout`.

        `timeout` 0 does not wait, None waits for ever. Raises ClosedError at the end of the stream
        and for a message that is not whole.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                data, fds, flags = self._receive_once()
            except (BlockingIOError, InterruptedError):
                if not self._wait(select.POLLIN, deadline):
                    return None
                continue
            except OSError as error:
                raise ClosedError(f"the channel is closed: {error}") from error
            if not data:
                raise ClosedError("the other end of the channel is gone")
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                close_all(fds)
                raise ClosedError("a message of the channel was cut short")
            message: Message = msgpack.unpackb(data)
            if _ELSEWHERE in message:
                message = _read_memfd(fds.pop(), message[_ELSEWHERE])
            return message, fds

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _receive_once(self) -> tuple[bytes, list[int], int]:
        item = array.array("i").itemsize
        data, ancillary, flags, _ = self._socket.recvmsg(
            INLINE_BYTES,
            socket.CMSG_SPACE((MAX_DESCRIPTORS + 1) * item),
            socket.MSG_CMSG_CLOEXEC,
        )
        fds = array.array("i")
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[: len(payload) - len(payload) % item])
        return data, list(fds), flags

    def _wait(self, event: int, deadline: float | None) -> bool:
        remaining = None if deadline is None else deadline - time.monotonic()
        if remaining is not None and remaining <= 0:
            return False
        poller = select.poll()
        poller.register(self._socket, event)
        poller.poll(None if remaining is None else max(1, int(remaining * 1000)))
        return True

    def _after_fork_in_child(self) -> None:
        self._socket.close()


def _filled_memfd(data: bytes) -> int:
    fd = os.memfd_create("pyengine-message", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(data)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _read_memfd(fd: int, size_bytes: int) -> Message:
    try:
        message: Message = msgpack.unpackb(os.pread(fd, size_bytes, 0))
    finally:
        os.close(fd)
    return message


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors that nobody is going to use."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
