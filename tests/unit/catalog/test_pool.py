"""The pool: restored files get names of the new line, old lines' files go at its first commit."""

from __future__ import annotations

import functools
import os
import shutil

import pytest
from faulty_fork import DONE, run_faulty

from pyengine.catalog import lines, pool
from pyengine.catalog.claim import claim_run
from pyengine.catalog.commit_lock import commit_lock
from pyengine.catalog.verify import verify_snapshot
from pyengine.errors import DamageError, StaleGenerationError, TruncatedFileError
from pyengine.format import names
from pyengine.format.buffer_header import BufferHeader
from pyengine.fs import door
from pyengine.fs.faults import FaultDoor, Rule

NEW = 0xCD


@pytest.fixture
def committed(run, make):
    info = make.publish(run.run_dir)
    with open(os.path.join(info.path, "buffer/replay/buffer_header.json"), "rb") as file:
        return run, info, BufferHeader.from_bytes(file.read(), path="h")


def _adopt(run, info, header):
    plan = pool.plan_adoption(run.run_dir, info, header, line=NEW, first_sequence=40)
    with commit_lock(run.run_dir, 1) as held:
        return plan, pool.adopt_files(held, "replay", plan)


def test_full_segments_are_linked_under_new_names(committed):
    run, info, header = committed
    adopted, copied = _adopt(run, info, header)
    assert sorted(adopted) == ["segment-a.seg", "segment-b.seg"]
    assert copied == []
    line, lane, first_row, row_count, sequence, checksum, file_bytes = adopted[
        "segment-a.seg"
    ].record
    assert (line, lane, first_row, row_count, sequence) == (NEW, 0, 0, 4, 40)
    record = info.file("buffer/replay/segment-a.seg")
    assert adopted["segment-a.seg"].source == os.path.join(info.path, record.path)
    assert (f"{checksum:016x}", file_bytes) == (record.xxh3_64, record.size_bytes)
    name = names.PoolName(line, lane, first_row, row_count, sequence).text
    assert adopted["segment-a.seg"].target == os.path.join(run.run_dir, "segments/replay", name)
    assert os.path.samefile(
        adopted["segment-a.seg"].target,
        os.path.join(info.path, "buffer/replay/segment-a.seg"),
    )


def test_refused_links_become_copies_with_one_warning(committed, monkeypatch, caplog):
    run, info, header = committed
    rules = [Rule(op=op, action="error", errno="EPERM", times=0) for op in ("link", "clone")]
    monkeypatch.setattr(door, "active", FaultDoor(rules))
    adopted, copied = _adopt(run, info, header)
    assert copied == list(adopted)
    assert len(adopted) == 2
    for file in adopted.values():
        with open(file.source, "rb") as source, open(file.target, "rb") as target:
            assert source.read() == target.read()
            assert not os.path.samestat(os.fstat(source.fileno()), os.fstat(target.fileno()))
    assert len([record for record in caplog.records if "copied" in record.message]) == 1
    assert not [n for n in os.listdir(run.run_dir + "/segments/replay") if n.startswith(".tmp")]


def test_shortened_file_is_typed_before_it_is_adopted(committed):
    run, info, header = committed
    path = os.path.join(info.path, "buffer/replay/segment-b.seg")
    os.truncate(path, os.path.getsize(path) - 1)
    with pytest.raises(TruncatedFileError) as caught:
        _adopt(run, info, header)
    assert caught.value.path == path


def test_unlisted_file_is_refused(committed):
    import dataclasses

    run, info, header = committed
    bare = dataclasses.replace(info, files=())
    with pytest.raises(DamageError):
        _adopt(run, bare, header)


def test_first_commit_of_a_line_removes_the_pool_of_others(committed, make):
    run, info, _ = committed
    old = lines.open_line(run.run_dir, 1, parent=None, start_rows={"replay": (0, 0)})
    new = lines.open_line(run.run_dir, 1, parent=info, start_rows={"replay": [10, 3]})
    directory = os.path.join(run.run_dir, "segments", "replay")
    os.makedirs(directory)
    for line in (old.id, new.id, 12345):
        for name in (names.PoolName(line, 0, 0, 4, 1).text, names.PartName(line, 2).text):
            with open(os.path.join(directory, name), "w"):
                pass
    make.publish(run.run_dir, sequence=2, line=new.id)
    left = {name[:16] for name in os.listdir(directory)}
    assert left == {new.text, names.line_text(12345)}


def _open_with_files(run_dir, generation, info, header):
    """Open a line with a snapshot's files, as a restore does; no error is met on the way."""
    line_id = lines.draw_id()
    plan = pool.plan_adoption(run_dir, info, header, line=line_id, first_sequence=1)
    with commit_lock(run_dir, generation) as held:
        line = lines.next_line(held, line_id, parent=info, start_rows={"replay": [10, 3]})
        with lines.recording(held, line) as directories:
            pool.adopt_files(held, "replay", plan)
            directories.append(pool.pool_directory(run_dir, "replay"))


def test_names_and_record_of_a_line_come_together_wherever_a_restore_is_killed(committed):
    run, info, header = committed
    run.release()
    ends, opened = [], 0
    while DONE not in ends:
        with claim_run(run.run_dir, wait_seconds=0) as owned:
            opening = functools.partial(
                _open_with_files, run.run_dir, owned.generation, info, header
            )
            ends.append(run_faulty(opening, len(ends) + 1, "kill"))
        with claim_run(run.run_dir, wait_seconds=0):
            recorded = set(lines.read_lines(run.run_dir))
            assert pool.lines_in_pool(run.run_dir) == recorded
            left = os.listdir(os.path.join(run.run_dir, "lines"))
            assert left == [f"{line}.json" for line in recorded]
        # Each line that is there takes calls to read.
        for line in recorded:
            opened += 1
            os.unlink(os.path.join(run.run_dir, "lines", f"{line}.json"))
            shutil.rmtree(pool.pool_directory(run.run_dir, "replay"))
    assert len(ends) > 10
    assert opened > 1, "one was killed after its line was open"
    assert verify_snapshot(info.path) == []


def test_removing_needs_the_newest_generation(committed):
    run, _, _ = committed
    with pytest.raises(StaleGenerationError), commit_lock(run.run_dir, 0) as held:
        pool.remove_pool_files(held, "replay", ["x"])


def test_removing_what_is_gone_is_no_error(committed):
    run, _, _ = committed
    with commit_lock(run.run_dir, 1) as held:
        pool.remove_pool_files(held, "replay", ["x"])


def test_lines_are_read_back(committed):
    run, info, _ = committed
    line = lines.open_line(run.run_dir, 1, parent=info, start_rows={"replay": [10, 3]})
    assert lines.read_lines(run.run_dir) == {line.text: line}
    assert (line.parent, line.parent_line) == (info.name, info.line)
    with open(os.path.join(run.run_dir, "lines", "00000000000000ff.json"), "w") as file:
        file.write("{}")
    assert list(lines.read_lines(run.run_dir)) == [line.text]
