"""Things that are no files of ours in the places of a run: every reader refuses them by type.

Each case runs in this process under an alarm: a FIFO that somebody opens, or a sparse giant that
somebody reads, would hold it up.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
import socket
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from readers import GOLDEN

import pyengine
from pyengine.catalog.claim import claim_run
from pyengine.cli.main import main
from pyengine.errors import PyengineError

SECONDS = 20


@contextlib.contextmanager
def alarmed() -> Iterator[None]:
    def late(*_: object) -> None:
        raise AssertionError(f"still reading after {SECONDS} s")

    former = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)


@pytest.fixture(scope="module")
def golden_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("golden")
    with tarfile.open(GOLDEN / "run.tar.xz") as tar:
        tar.extractall(directory)
    return directory / "run"


@pytest.fixture
def run(golden_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(golden_run, tmp_path / "run", symlinks=True))


def _files(run: Path) -> list[str]:
    """The files that a run is found and read by, one of each kind, of its newest snapshot."""
    with tarfile.open(run) as tar:
        names = [member.name.removeprefix("run/") for member in tar if member.isfile()]
    newest = max(name.split("/")[1] for name in names if name.startswith("snapshots/"))
    kept = [name for name in names if not name.startswith(("snapshots/", "segments/"))]
    kept += [name for name in names if name.startswith(f"snapshots/{newest}/")]
    by_kind: dict[tuple[str, str], str] = {}
    for name in kept:
        parts = name.split("/")
        kind = (parts[0], parts[2] if len(parts) == 3 else os.path.splitext(name)[1])
        by_kind.setdefault(kind, name)
    return sorted(by_kind.values())


def put_symlink(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "bait")


def put_fifo(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def put_socket(path: Path, outside: Path) -> None:
    here = os.open(path.parent, os.O_DIRECTORY)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(f"/proc/self/fd/{here}/{path.name[:20]}")
    os.close(here)
    os.rename(path.parent / path.name[:20], path)


def put_directory(path: Path, outside: Path) -> None:
    path.mkdir()


def put_giant(path: Path, outside: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 42)


def put_nothing(path: Path, outside: Path) -> None:
    path.touch()


class Bomb:
    """A pickle that leaves a mark where it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = str(mark)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (self.mark,)


def put_pickle(path: Path, outside: Path) -> None:
    path.write_bytes(pickle.dumps(Bomb(outside / "exploded")))


PUTS = [put_symlink, put_fifo, put_socket, put_directory, put_giant, put_nothing, put_pickle]


@pytest.mark.parametrize("put", PUTS, ids=lambda put: put.__name__[4:])
@pytest.mark.parametrize("file", _files(GOLDEN / "run.tar.xz"))
def test_what_is_no_file_of_ours_is_refused(
    run: Path, tmp_path: Path, file: str, put: Callable[[Path, Path], None]
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "bait").write_bytes((run / file).read_bytes())
    kept = (outside / "bait").read_bytes()
    (run / file).unlink()
    put(run / file, outside)
    with alarmed():
        with contextlib.suppress(PyengineError, OSError):
            pyengine.load(run)
        with contextlib.suppress(PyengineError, OSError):
            pyengine.open_run(run)
        for command in (["inspect", str(run)], ["verify", str(run)], ["gc", str(run)]):
            assert main(command) in (0, 1, 2, 3)
        with contextlib.suppress(PyengineError, OSError), claim_run(str(run)):
            pass
    # Nothing outside was written, and nothing that was planted has run.
    assert os.listdir(outside) == ["bait"]
    assert (outside / "bait").read_bytes() == kept


def test_the_unchanged_run_is_read(run: Path) -> None:
    with alarmed():
        assert pyengine.load(run)
        assert main(["verify", str(run)]) == 0
