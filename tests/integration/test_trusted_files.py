"""Nothing is restored that another user could have written, and nothing is made so."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from program import tracking

from pyengine.errors import RunDirectoryError


def names_of(run_dir: Path) -> set[str]:
    """Return what lies in the run, but for claims, which each start adds."""
    kept = (path.relative_to(run_dir) for path in run_dir.rglob("*"))
    return {str(path) for path in kept if path.parts[0] != "generations"}


def snapshot_of(run_dir: Path) -> Path:
    (snapshot,) = (run_dir / "snapshots").iterdir()
    return snapshot


WHERE = {
    "the snapshot": lambda run: snapshot_of(run),
    "a directory of it": lambda run: snapshot_of(run) / "buffer",
    "its manifest": lambda run: snapshot_of(run) / "manifest.json",
    "a file of it": lambda run: snapshot_of(run) / "meta.json",
    "rows of it": lambda run: next((snapshot_of(run) / "buffer").rglob("*.seg")),
    "a ring's pool": lambda run: next((run / "segments").iterdir()),
}


def refused(run_dir: Path, match: str, **options: str) -> None:
    before = names_of(run_dir)
    with tracking(run_dir) as (engine, training):
        untouched = training.digest()
        with pytest.raises(RunDirectoryError, match=match):
            engine.restore(**options)
        assert training.digest() == untouched
    assert names_of(run_dir) == before, "nothing was moved"


def restores(run_dir: Path, digest: str, **options: str) -> None:
    with tracking(run_dir) as (engine, training):
        assert engine.restore(**options)
        assert training.digest() == digest


@pytest.mark.parametrize("where", WHERE)
def test_what_everybody_may_write_is_not_restored(saved: tuple[Path, str], where: str) -> None:
    run_dir, digest = saved
    path = WHERE[where](run_dir)
    mode = stat.S_IMODE(path.stat().st_mode)
    path.chmod(mode | 0o002)
    refused(run_dir, "can be written by everybody")
    path.chmod(mode | 0o020)
    restores(run_dir, digest)


@pytest.mark.skipif(os.geteuid() != 0, reason="giving files away needs root")
@pytest.mark.parametrize("where", WHERE)
def test_what_is_another_users_is_not_restored(saved: tuple[Path, str], where: str) -> None:
    run_dir, digest = saved
    path = WHERE[where](run_dir)
    os.chown(path, 12345, -1)
    refused(run_dir, "belongs to user 12345")
    os.chown(path, 0, -1)
    restores(run_dir, digest)


def test_rows_after_the_snapshot_are_not_taken_from_files_that_everybody_may_write(
    saved: tuple[Path, str],
) -> None:
    run_dir, digest = saved
    pool = next((run_dir / "segments").iterdir())
    snapshots = {path.stat().st_ino for path in snapshot_of(run_dir).rglob("*")}
    own = [path for path in pool.iterdir() if path.stat().st_ino not in snapshots]
    stray = own[0] if own else pool / "stray"
    stray.touch()
    stray.chmod(0o666)
    refused(run_dir, "can be written by everybody", replay="latest")
    restores(run_dir, digest)


@pytest.fixture
def without_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("without_umask")
def test_without_an_umask_nobody_else_may_write_a_file_either(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    for start in range(2):
        with tracking(run_dir) as (engine, training):
            report = engine.restore()
            training.step(start)
            engine.snapshot(report.next_step).wait(60)
    modes = {path: path.lstat().st_mode for path in (run_dir, *run_dir.rglob("*"))}
    assert any(path.suffix == ".log" for path in modes)
    for path, mode in modes.items():
        if stat.S_ISREG(mode):
            assert stat.S_IMODE(mode) == 0o644, path
        elif stat.S_ISDIR(mode):
            assert not mode & 0o002, path
