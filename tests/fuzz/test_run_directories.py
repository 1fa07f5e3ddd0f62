"""Things that are no files of ours in the places of a run: every reader refuses them by type.

Each case runs in this process: a FIFO that somebody opens, or a sparse giant that somebody reads,
would hold it up until the test's time is over.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import shutil
import socket
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from crash.thread_writer import NoWriter, writers_in_threads
from program import Training, new_ring
from readers import GOLDEN

import pyengine
from pyengine import errors
from pyengine.catalog.claim import claim_run
from pyengine.cli.main import main
from pyengine.errors import PyengineError, RunDirectoryError


def restore(run: Path) -> str:
    """Restore the run, and return "restored" or the type of the error; live objects are then what
    they were, unless the whole snapshot was put back."""
    training = Training(seed=5, ring=new_ring(rows_per_lane=8))
    with writers_in_threads(NoWriter), pyengine.SnapshotEngine(run) as engine:
        training.track(engine)
        before = training.digest()
        try:
            report = engine.restore(eager=True)
        except (PyengineError, OSError) as error:
            assert not engine._is_poisoned
            assert training.digest() == before
            return type(error).__name__
        assert report, "a run that has snapshots does not begin anew"
        return "restored"


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
    by_kind: dict[tuple[str, str, bool], str] = {}
    for name in kept:
        parts = name.split("/")
        kind = (
            parts[0],
            parts[2] if len(parts) == 3 else os.path.splitext(name)[1],
            "-part-" in name,
        )
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


def restore_or_raise(run: Path) -> None:
    training = Training(seed=5, ring=new_ring(rows_per_lane=8))
    with writers_in_threads(NoWriter), pyengine.SnapshotEngine(run) as engine:
        training.track(engine)
        engine.restore()


@contextlib.contextmanager
def little_room() -> Iterator[None]:
    """Leave this process 4 GiB of address space more than it has: a giant does not fit."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        taken_bytes = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken_bytes + (4 << 30), limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


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
    with contextlib.suppress(PyengineError, OSError):
        pyengine.load(run)
    with contextlib.suppress(PyengineError, OSError):
        pyengine.open_run(run)
    for command in (["inspect", str(run)], ["verify", str(run)], ["gc", str(run)]):
        assert main(command) in (0, 1, 2, 3)
    with contextlib.suppress(PyengineError, OSError), claim_run(str(run)):
        pass
    with contextlib.suppress(PyengineError), little_room():
        outcome = restore(run)
        # Of the newest snapshot it is damage, which costs that one alone.
        assert outcome == "restored" or not file.startswith("snapshots/")
        assert outcome == "restored" or hasattr(errors, outcome)
    # Nothing outside was written, and nothing that was planted has run.
    assert os.listdir(outside) == ["bait"]
    assert (outside / "bait").read_bytes() == kept


@pytest.mark.parametrize(
    "put", [put_symlink, put_fifo, put_giant], ids=lambda put: put.__name__[4:]
)
@pytest.mark.parametrize("folder", ["", "model", "rng", "optimizer", "buffer", "buffer/replay"])
def test_what_is_no_directory_of_ours_is_refused(
    run: Path, tmp_path: Path, folder: str, put: Callable[[Path, Path], None]
) -> None:
    """A whole copy of a snapshot's directory elsewhere is not followed to."""
    outside = tmp_path / "outside"
    outside.mkdir()
    newest, older = (path.name for path in sorted((run / "snapshots").iterdir(), reverse=True))
    place = run / "snapshots" / newest / folder
    place.rename(outside / "bait")
    kept = sorted(outside.rglob("*"))
    put(place, outside)
    with contextlib.suppress(PyengineError, OSError):
        pyengine.load(run)
    for command in (["inspect", str(run)], ["verify", str(run)], ["gc", str(run)]):
        assert main(command) in (0, 1, 2, 3)
    assert restore(run) in ("restored", "OSError", "NotADirectoryError", "MalformedFileError")
    assert sorted(outside.rglob("*")) == kept
    assert (run / "snapshots" / older).is_dir()


@pytest.mark.parametrize(
    ("place", "put"),
    [
        (place, put)
        for place in (
            "lines",
            "segments",
            "segments/replay",
            "quarantine",
            "recovery",
            "generations",
            "snapshots",
            "lock",
        )
        for put in (put_symlink, put_fifo, put_socket, put_giant)
        if (place, put) != ("lock", put_giant)  # of any size a lock is one
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__[4:],
)
def test_what_is_no_part_of_a_run_in_the_place_of_one_is_refused_by_type(
    run: Path, tmp_path: Path, place: str, put: Callable[[Path, Path], None]
) -> None:
    if place == "lock":
        (run / place).unlink(missing_ok=True)
    else:
        shutil.rmtree(run / place, ignore_errors=True)
    put(run / place, tmp_path / "nowhere")
    with pytest.raises(RunDirectoryError, match=f"{place} is not a"):
        restore_or_raise(run)
    (run / place).unlink()
    if place != "snapshots":
        assert restore(run) == "restored"


ODD_NAMES = [
    "step-99999999999999999999.g0001.s0001", "step-00000001.g0001", "step-1.g1.s1", "..x",
    "x" * 255, "step-00000014.g0001.s0002 ", "\udc80\n\x1b[2J",
]  # fmt: skip


@pytest.mark.parametrize("name", ODD_NAMES)
@pytest.mark.parametrize("parent", ["snapshots", "generations", "lines", "segments", "recovery"])
def test_odd_names_are_passed_over(run: Path, parent: str, name: str) -> None:
    """A directory, a copy of the newest snapshot where it is one, under a name that is none."""
    newest = max((run / "snapshots").iterdir())
    shutil.copytree(newest, run / parent / name)
    (run / parent / f"{name[:250]}.json").mkdir()
    assert pyengine.load(run)
    assert main(["verify", str(run)]) in (0, 1, 3)
    assert restore(run) == "restored"


@pytest.mark.parametrize("parent", ["snapshots", "generations", "quarantine"])
def test_a_generation_after_which_none_can_come_is_refused_by_type(run: Path, parent: str) -> None:
    last = "9223372036854775807"
    name = last if parent == "generations" else f"step-00000014.g{last}.s0002"
    (run / parent / name).mkdir()
    with pytest.raises(RunDirectoryError, match=last):
        restore(run)


def test_a_path_as_deep_as_the_kernel_takes_is_passed_over(run: Path) -> None:
    here = os.open(run / "snapshots", os.O_DIRECTORY)
    for _ in range(300):
        os.mkdir("d" * 200, dir_fd=here)
        deeper = os.open("d" * 200, os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)
    assert main(["verify", str(run)]) == 0
    assert main(["gc", str(run)]) == 0
    assert restore(run) == "restored"
    subprocess.run(["rm", "-rf", run / "snapshots"], check=True)  # rmtree() goes no deeper


def test_ten_thousand_entries_are_passed_over(run: Path) -> None:
    for folder in ("lines", "recovery", "snapshots", "quarantine"):
        for i in range(2_500):
            (run / folder / f"{i:016x}.json").touch()
    assert main(["verify", str(run)]) == 0
    assert restore(run) == "restored"


def test_the_unchanged_run_is_read(run: Path) -> None:
    assert pyengine.load(run)
    assert main(["verify", str(run)]) == 0
    assert restore(run) == "restored"
