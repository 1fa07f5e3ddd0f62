"""Damaged files: an error that names them, before a value reaches the user."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import committed
from program import Training, new_ring, tracking

import pyengine
from pyengine import errors


@pytest.mark.parametrize(
    "path",
    [
        "model/policy.safetensors",
        "optimizer/optimizer.msgpack",
        "meta.json",
        "buffer/replay/buffer_header.json",
        "buffer/replay/mutable.safetensors",
        "manifest.json",
    ],
)
def test_damage_is_an_error_that_names_the_file_and_changes_nothing(
    saved: tuple[Path, dict[str, str]], path: str
) -> None:
    run_dir, _ = saved
    file = run_dir / "snapshots" / committed(run_dir)[-1] / path
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with tracking(run_dir) as (engine, training):
        before = training.digest()
        with pytest.raises(errors.DamageError) as caught:
            engine.restore(fall_back=False)
        assert caught.value.path == str(file)
        assert training.digest() == before
        with pytest.raises(errors.UnrestoredRunError):
            engine.tick(0)


def test_a_truncated_file_is_told_from_a_changed_one(saved: tuple[Path, dict[str, str]]) -> None:
    run_dir, _ = saved
    file = run_dir / "snapshots" / committed(run_dir)[-1] / "model" / "policy.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pyengine.SnapshotEngine(run_dir) as engine:
        Training().track(engine)
        with pytest.raises(errors.TruncatedFileError, match=r"policy\.safetensors"):
            engine.restore(fall_back=False)


def damage_a_segment(run_dir: Path, offset: int = 4096 + 40) -> Path:
    """Change a byte of the oldest full segment: by default one of a row of the first field."""
    directory = run_dir / "snapshots" / committed(run_dir)[-1] / "buffer" / "replay"
    file = sorted(directory.glob("segment-*-0-0-8-*.seg"))[0]
    data = bytearray(file.read_bytes())
    data[offset] ^= 1
    file.write_bytes(data)
    return file


@pytest.mark.parametrize("offset", [300, 4096 + 40])
def test_damage_in_a_segment_that_is_found_at_once_changes_nothing(
    saved: tuple[Path, dict[str, str]], offset: int
) -> None:
    """A field table in a header, found in any restore; a row, found in an eager one."""
    run_dir, _ = saved
    file = damage_a_segment(run_dir, offset)
    with tracking(run_dir) as (engine, training):
        training.insert(0)
        before = training.digest()
        with pytest.raises(errors.DamageError) as caught:
            engine.restore(eager=offset > 4096, fall_back=False)
        assert caught.value.path == str(file)
        assert training.digest() == before
        with pytest.raises(errors.UnrestoredRunError):
            engine.tick(0)


@pytest.mark.parametrize("eager", [False, True])
def test_a_damaged_segment_never_reaches_the_user(
    saved: tuple[Path, dict[str, str]], eager: bool
) -> None:
    run_dir, _ = saved
    file = damage_a_segment(run_dir)
    ring = new_ring()
    with pyengine.SnapshotEngine(run_dir) as engine:
        training = Training(ring=ring)
        training.track(engine)

        def read_everything() -> None:
            engine.restore(eager=eager, fall_back=False)
            assert not eager, "eager means that damage is found at once"
            ring.gather(ring.refs())

        with pytest.raises(errors.DamageError) as caught:
            read_everything()
        # The snapshot's own file: to move its directory away is the remedy.
        assert caught.value.path == str(file)
        assert caught.value.offset is not None


def test_on_a_network_file_system_a_restore_reads_everything_at_once(
    saved: tuple[Path, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyengine.engine.engine.is_remote", lambda path: True)
    run_dir, _ = saved
    damage_a_segment(run_dir)
    with tracking(run_dir) as (engine, _training), pytest.raises(errors.DamageError):
        engine.restore(fall_back=False)
