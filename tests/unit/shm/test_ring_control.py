"""A ring's segment table, read by the writer while the trainer gives its entries away."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pyengine import ReplayBuffer
from pyengine.errors import ClosedError

READER = Path(__file__).with_name("place_reader.py")


def test_a_place_is_of_one_file_while_the_entry_goes_to_the_next() -> None:
    with ReplayBuffer({"id": "int64"}, 16) as ring:
        ring.add(id=1)
        assert ring.storage is not None
        core, control = ring.storage.core, ring.storage.control
        fd, size = ring.storage.arena.fd, ring.storage.arena.size_bytes
        segment = control.table_length  # the entry of segment 0, and of each multiple
        control.line = segment
        child = subprocess.Popen(
            [sys.executable, str(READER), str(fd), str(size)],
            pass_fds=[fd],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        deadline = time.monotonic() + 60
        while not select.select([child.stdout], [], [], 0)[0]:
            assert time.monotonic() < deadline
            for _ in range(1000):
                segment += control.table_length
                control.line = segment
                core.map_segment(0, segment, 0, (segment,) * 7)
        control.line = 0
        said, _ = child.communicate(timeout=30)
        enough, found = said.splitlines()
        assert enough == "enough"
        assert found.endswith(" []")
        assert control.place(0, segment) == (segment,) * 7
        assert control.place(0, segment - control.table_length) is None


def test_a_released_control_block_is_closed() -> None:
    with ReplayBuffer({"id": "int64"}, 16) as ring:
        ring.add(id=1)
        assert ring.control is not None
        control = ring.control
        assert control.place(0, 0) == 0
    for call in (lambda: control.place(0, 0), lambda: control.tail(0), lambda: control.lanes):
        with pytest.raises(ClosedError):
            call()
