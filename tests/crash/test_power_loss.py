"""Power cuts at every call of a real run: nothing that was waited for is ever lost.

`make torture` tries a hundred thousand states; these are the corners, and a few samples, of some
of its calls. A failure names seed, call and number: `tools/torture.py --only power/...` repeats it
from the journal, which is kept.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from crash import mending
from crash.faulty_lives import Case, Stage
from crash.loop_disk import LoopDisk, cut_power, why_not
from crash.power_loss import Journal, record, sweep

SEED = 1


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Journal:
    return record(SEED, str(tmp_path_factory.mktemp("recorded")))


def test_a_restore_after_a_cut_is_whole_and_no_older_than_what_was_waited_for(
    journal: Journal, tmp_path: Path
) -> None:
    tally = sweep(journal, 240)
    if tally.wrong:
        journal.save(str(tmp_path / f"journal-{SEED}"))
    assert not tally.wrong, f"kept in {tmp_path}"
    assert tally.tried > 150
    assert tally.gone_on > 12


@pytest.fixture(scope="module")
def mended(tmp_path_factory: pytest.TempPathFactory) -> Journal:
    return record(SEED, str(tmp_path_factory.mktemp("mended")), mending.play)


def test_a_cut_loses_neither_a_damaged_snapshot_nor_a_branch_nor_what_was_waited_for(
    mended: Journal, tmp_path: Path
) -> None:
    tally = sweep(mended, 160)
    if tally.wrong:
        mended.save(str(tmp_path / f"journal-{SEED}"))
    assert not tally.wrong, f"kept in {tmp_path}"
    assert tally.tried > 100


def test_the_sweep_finds_out_a_move_between_directories_that_syncs_its_source_first(
    mended: Journal,
) -> None:
    notes = list(mended.notes)
    moved = next(
        index
        for index, note in enumerate(notes)
        if note["op"] == "rename" and "/quarantine/step-" in note["target"]
        if "/snapshots/" in note["path"]
    )
    into, out_of = notes[moved + 1 : moved + 3]
    assert (into["op"], out_of["op"]) == ("sync", "sync")
    calls = sum(note["op"] != "mark" for note in notes[: moved + 2])
    assert sweep(mended, 1, only=(calls, 0)).wrong == []
    notes[moved + 1 : moved + 3] = out_of, into
    ((_, wrong),) = sweep(replace(mended, notes=notes), 1, only=(calls, 0)).wrong
    assert "is under no name any more" in wrong


def test_the_journal_covers_what_the_scenario_is_about(journal: Journal) -> None:
    paths = [note.get("target", note.get("path", "")) for note in journal.notes]
    for what in ("/segments/replay/", "-part-", "/recovery/", "/lines/", "/latest", ".trash-"):
        assert any(what in path for path in paths), what
    unlinked = [note["path"] for note in journal.notes if note["op"] == "unlink"]
    assert any("/segments/replay/" in path for path in unlinked), "no segment aged out"
    pids = {note["pid"] for note in journal.notes if note["op"] != "mark"}
    assert len(pids) == 6, "three trainers and three writers"


@pytest.mark.parametrize("forgotten", ["files", "directories"])
def test_the_sweep_finds_out_a_run_that_forgets_to_fsync(journal: Journal, forgotten: str) -> None:
    made = {"files": "create", "directories": "mkdir"}[forgotten]
    inodes = [note["inode"] for note in journal.notes if note["op"] == made]
    notes = [note for note in journal.notes if note["op"] != "sync" or note["inode"] not in inodes]
    assert len(notes) < len(journal.notes)
    assert sweep(replace(journal, notes=notes), 80).wrong


@pytest.mark.root
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
@pytest.mark.parametrize(
    "case",
    [
        "0/writer/120/kill-both-before",
        "1/trainer/12/kill-both-after",
        "1/writer/75/kill-both-after",
        "2/writer/140/kill-both-before",
    ],
)
def test_a_real_disk_whose_power_is_cut_keeps_what_was_waited_for(
    stage: Stage, kind: str, case: str
) -> None:
    reason = why_not(kind)
    if reason is not None:
        pytest.skip(reason)
    with LoopDisk(kind) as disk:
        assert cut_power(stage, disk, Case.parse(f"{SEED}/{case}")) is None
