"""The order of one commit's system calls, and what a power cut leaves of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from processes import await_writers_end
from program import Training

import pyengine


def traced_calls(
    run_dir: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[str, Any]]:
    """Return the writer's calls from start to end of a run with one snapshot."""
    rule = {"op": "*", "action": "record", "file": str(log), "process": "*pyengine.writer*"}
    monkeypatch.setenv("PYENGINE_FAULT_PLAN", json.dumps([rule]))
    training = Training()
    with pyengine.SnapshotEngine(run_dir) as engine:
        training.track(engine)
        engine.restore()
        for step in range(26):  # three full segments a lane, of eight rows each, and an open one
            training.step(step)
        name = engine.snapshot(25).wait(60).name
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    return [(name, "")] + [(call["op"], call["paths"]) for call in calls]


def test_the_manifest_comes_last(
    monkeypatch: pytest.MonkeyPatch, token: str, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    (name, _), *calls = traced_calls(run_dir, tmp_path / "log", monkeypatch)
    await_writers_end(token)
    final = str(run_dir / "snapshots" / name)
    staged = str(run_dir / "snapshots" / f".tmp-g0001-{name}-1")
    pool = str(run_dir / "segments" / "replay")

    def where(op: str, *paths: str) -> list[int]:
        return [i for i, call in enumerate(calls) if call == (op, list(paths))]

    def where_op(op: str, inside: str) -> list[tuple[int, str]]:
        return [
            (i, call[1][-1])
            for i, call in enumerate(calls)
            if call[0] == op and call[1][-1].startswith(inside + "/")
        ]

    # Pool files: written, fsynced, renamed, then their directory is fsynced; links come after.
    segments = where_op("rename", pool)
    assert len(segments) == 12
    pool_syncs = where("fsync", pool)
    links = {calls[i][1][0]: i for i, _ in where_op("link", staged)}
    assert links
    for moved, target in segments:
        temporary = calls[moved][1][0]
        synced = [i for i in where("fsync", temporary) if i < moved]
        written = [i for i in where("pwrite", temporary) if i < moved]
        assert written
        assert synced
        assert max(written) < max(synced) < moved
        if target in links:
            assert any(moved < i < links[target] for i in pool_syncs)

    # The snapshot's own files and all directories, then the rename, its parent, the manifest.
    own = {path for _, path in where_op("pwrite", staged)}
    assert any(path.endswith(".safetensors") for path in own)
    (renamed,) = where("rename", staged, final)
    for path in own:
        assert max(where("pwrite", path)) < max(where("fsync", path)) < renamed
    directories = {os.path.dirname(path) for path in own} | {staged}
    directories |= {os.path.dirname(calls[i][1][1]) for i in links.values()}
    for directory in directories:
        inside = [
            i for i, path in where_op("pwrite", directory) if os.path.dirname(path) == directory
        ]
        inside += [
            i for i, path in where_op("link", directory) if os.path.dirname(path) == directory
        ]
        syncs = [i for i in where("fsync", directory) if i < renamed]
        assert syncs
        assert max(inside, default=0) < max(syncs)
    (parent,) = [i for i in where("fsync", str(run_dir / "snapshots")) if i > renamed][:1]
    manifest = f"{final}/manifest.json"
    (shown,) = [i for i, path in where_op("rename", final) if path == manifest]
    temporary = calls[shown][1][0]
    assert renamed < parent < min(where("pwrite", temporary))
    assert max(where("pwrite", temporary)) < max(where("fsync", temporary)) < shown
    assert any(i > shown for i in where("fsync", final))
    # Nothing of the snapshot is touched after it became visible.
    assert [i for i, _ in where_op("pwrite", final) if i > shown] == []
