"""The journal of a run: every change with its bytes, in the order in which they happened."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import msgpack

from pyengine.fs import durable

_ARMED = """
import sys
from pyengine.fs import door, durable
directory, name = sys.argv[1:]
durable.make_directory(directory)
durable.replace_file(directory, name, b"data", temporary=name + ".tmp")
fd = door.active.open(directory + "/" + name, 0o2001)  # O_WRONLY | O_APPEND
door.active.write(fd, b"more")
door.active.close(fd)
door.active.mark(event="here")
"""


def _run(journal, *arguments):
    rule = {"op": "changes", "action": "journal", "file": str(journal)}
    environment = dict(os.environ, PYENGINE_FAULT_PLAN=json.dumps([rule]))
    return subprocess.Popen([sys.executable, "-c", _ARMED, *arguments], env=environment)


def _notes(journal):
    with open(journal, "rb") as file:
        return list(msgpack.Unpacker(file, raw=False))


def test_notes_tell_what_each_call_did(tmp_path):
    out = str(tmp_path / "out")
    assert _run(tmp_path / "journal", out, "a").wait() == 0
    notes = _notes(tmp_path / "journal")
    assert [note["op"] for note in notes] == [
        "mkdir",
        "sync",
        "create",
        "write",
        "sync",
        "rename",
        "sync",
        "write",
        "mark",
    ]
    status = os.stat(out + "/a")
    made, written, appended = notes[2], notes[3], notes[7]
    assert made["inode"] == [status.st_dev, status.st_ino]
    assert (written["offset"], written["data"]) == (0, b"data")
    assert (appended["offset"], appended["data"]) == (4, b"more")
    assert (notes[5]["path"], notes[5]["target"]) == (out + "/a.tmp", out + "/a")
    assert notes[4]["inode"] == made["inode"]
    assert notes[6]["inode"][1] == os.stat(out).st_ino


def test_processes_write_one_journal_without_tearing_it(tmp_path):
    journal = tmp_path / "journal"
    running = [_run(journal, str(tmp_path / "out"), f"file-{number}") for number in range(6)]
    assert [process.wait() for process in running] == [0] * 6
    notes = _notes(journal)
    assert sum(note["op"] == "mark" for note in notes) == 6
    for number in range(6):
        created = [note["path"] for note in notes if note["op"] == "create"]
        own = [path for path in created if path.endswith(f"-{number}.tmp")]
        assert len(own) == 1
    durable.remove_tree(str(tmp_path / "out"))
