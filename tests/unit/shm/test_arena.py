"""Arenas leave no name, live by descriptors, and refuse what they cannot hold."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest
from processes import shm_names

from pyengine.errors import ClosedError, ForkedProcessError, SharedMemoryError
from pyengine.shm import arena as arena_module
from pyengine.shm.arena import Arena


def in_child(task: object) -> int:
    """Run `task` in a forked child; return its exit status."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if task() else 1)
        except BaseException:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_an_arena_has_no_name_from_the_start() -> None:
    before = shm_names()
    with Arena.create(1 << 20, "test") as arena:
        assert shm_names() == before
        assert os.fstat(arena.fd).st_nlink == 0
        assert not os.get_inheritable(arena.fd)


def test_an_arena_lies_in_dev_shm_and_never_had_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_name(*_: object, **__: object) -> None:
        raise AssertionError("a name was made")

    monkeypatch.setattr("posix_ipc.SharedMemory", no_name)
    with Arena.create(4096, "test") as arena:
        assert not arena.is_memfd
        assert os.readlink(f"/proc/self/fd/{arena.fd}").startswith("/dev/shm/")
        assert os.fstat(arena.fd).st_mode & 0o777 == 0o600


def test_without_nameless_files_the_name_is_unlinked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused() -> int:
        raise OSError(errno.EOPNOTSUPP, "no O_TMPFILE here")

    monkeypatch.setattr(arena_module, "_open_nameless", refused)
    before = shm_names()
    with Arena.create(4096, "test") as arena:
        assert shm_names() == before
        assert not arena.is_memfd
        assert os.fstat(arena.fd).st_nlink == 0
        assert not os.get_inheritable(arena.fd)
        assert os.fstat(arena.fd).st_mode & 0o777 == 0o600


def test_two_mappings_of_one_arena_share_their_bytes() -> None:
    with Arena.create(8192, "test") as mine, Arena.attach(os.dup(mine.fd), 8192) as theirs:
        mine.reserve(0, 8192)
        mine.view(4096, 5)[:] = b"hello"
        assert bytes(theirs.view(4096, 5)) == b"hello"


def test_memory_is_zeroed_and_sparse_until_reserved() -> None:
    with Arena.create(64 << 20, "test") as arena:
        assert os.fstat(arena.fd).st_blocks == 0
        arena.reserve(4096, 4096)
        assert os.fstat(arena.fd).st_blocks * 512 == 4096
        assert bytes(arena.view(4096, 4096)) == bytes(4096)


def test_a_region_larger_than_dev_shm_becomes_a_memfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena_module, "_shm_free_bytes", lambda: 4096)
    with Arena.create(8192, "big") as arena:
        assert arena.is_memfd
        assert "memfd" in os.readlink(f"/proc/self/fd/{arena.fd}")
        arena.reserve(0, 8192)
        arena.view(0, 3)[:] = b"abc"


def test_exhaustion_is_a_typed_error_and_not_a_signal() -> None:
    room = os.statvfs("/dev/shm")
    too_much = (room.f_bavail + 1) * room.f_frsize * 4
    with Arena.create(too_much, "huge") as arena:
        fd = os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR, 0o600)
        os.ftruncate(fd, too_much)
        with Arena(fd, too_much, label="small", is_memfd=False) as limited:
            with pytest.raises(SharedMemoryError, match="small") as caught:
                limited.reserve(0, too_much)
            assert caught.value.needed_bytes == too_much
            assert caught.value.free_bytes < too_much
        assert arena.is_memfd


def test_attaching_more_than_there_is_is_refused() -> None:
    with Arena.create(4096, "test") as arena, pytest.raises(SharedMemoryError):
        Arena.attach(os.dup(arena.fd), 8192)


def test_views_that_leave_the_arena_are_refused() -> None:
    with Arena.create(8192, "test") as arena:
        for offset, length in ((0, 8193), (8192, 1), (-1, 1), (0, -1)):
            with pytest.raises(ValueError, match="leave"):
                arena.view(offset, length)


def test_closing_twice_is_allowed_and_using_a_closed_arena_is_not() -> None:
    arena = Arena.create(4096, "test")
    fd = arena.fd
    arena.close()
    arena.close()
    with pytest.raises(ClosedError):
        arena.view(0, 1)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)


def test_a_view_outlives_the_closed_arena() -> None:
    arena = Arena.create(4096, "test")
    arena.reserve(0, 4096)
    view = arena.view(0, 4)
    view[:] = b"kept"
    arena.close()
    assert bytes(view) == b"kept"


def test_a_forked_child_holds_neither_descriptor_nor_mapping() -> None:
    with Arena.create(4096, "test") as arena:
        fd, address = arena.fd, arena.mapping.address

        def let_go() -> bool:
            with pytest.raises(OSError, match="Bad file"):
                os.fstat(fd)
            maps = Path("/proc/self/maps").read_text()
            assert not any(line.startswith(f"{address:x}-") for line in maps.splitlines())
            for use in (lambda: arena.view(0, 1), lambda: arena.fd, lambda: arena.reserve(0, 1)):
                with pytest.raises(ForkedProcessError):
                    use()
            arena.close()
            return True

        assert in_child(let_go) == 0
        assert arena.fd == fd
        arena.reserve(0, 4096)
        arena.view(0, 1)[:] = b"x"


def test_signals_are_served_again_after_an_arena_was_made() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, set())
    os.close(arena_module._open_posix())
    assert signal.pthread_sigmask(signal.SIG_BLOCK, set()) == before


def test_an_exception_from_the_call_that_blocks_signals_leaves_none_blocked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The call serves a handler that is due, after it has blocked them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, set())
    real = signal.pthread_sigmask

    def interrupted(how: int, mask: set[int]) -> object:
        former = real(how, mask)
        if how == signal.SIG_BLOCK and mask:
            raise KeyboardInterrupt
        return former

    monkeypatch.setattr(signal, "pthread_sigmask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        arena_module._open_posix()
    assert real(signal.SIG_BLOCK, set()) == before
