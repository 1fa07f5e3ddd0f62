"""The channel carries messages and descriptors, and never blocks for longer than asked."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from pyengine.errors import ClosedError
from pyengine.shm.channel import INLINE_BYTES, MAX_DESCRIPTORS, Channel, close_all


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    left, right = Channel.pair()
    with left, right:
        yield left, right


def test_messages_keep_their_order_and_their_borders(pair: tuple[Channel, Channel]) -> None:
    left, right = pair
    left.send("ring", name="replay", size=1 << 40)
    left.send("wake")
    assert right.receive(1) == ({"kind": "ring", "name": "replay", "size": 1 << 40}, [])
    assert right.receive(1) == ({"kind": "wake"}, [])
    assert right.receive(0) is None


def test_descriptors_arrive_as_new_ones_of_the_same_files(pair: tuple[Channel, Channel]) -> None:
    left, right = pair
    reader, writer = os.pipe()
    left.send("ring", fds=[reader, writer])
    received = right.receive(1)
    assert received is not None
    message, fds = received
    assert message == {"kind": "ring"}
    assert len(fds) == 2
    assert not set(fds) & {reader, writer}
    assert not any(os.get_inheritable(fd) for fd in fds)
    os.write(fds[1], b"through")
    assert os.read(reader, 7) == b"through"
    close_all([*fds, reader, writer])


def test_receiving_waits_for_a_message(pair: tuple[Channel, Channel]) -> None:
    left, right = pair
    thread = threading.Thread(target=lambda: left.send("wake"))
    thread.start()
    assert right.receive(10) == ({"kind": "wake"}, [])
    thread.join()


def test_a_reader_that_sleeps_does_not_block_the_sender(pair: tuple[Channel, Channel]) -> None:
    left, right = pair
    sent = 0
    while left.send("wake", timeout=0):
        sent += 1
        assert sent < 1_000_000
    assert not left.send("wake", timeout=0.01)
    for _ in range(sent):
        assert right.receive(0) is not None
    assert left.send("wake", timeout=0)


def test_a_message_larger_than_the_socket_takes_arrives_whole(
    pair: tuple[Channel, Channel],
) -> None:
    left, right = pair
    before = len(os.listdir("/proc/self/fd"))
    schema = {f"field {number}": "float32" for number in range(20_000)}
    reader, writer = os.pipe()
    left.send("ring", fds=[reader] * MAX_DESCRIPTORS, schema=schema)
    left.send("wake")
    received = right.receive(1)
    assert received is not None
    message, fds = received
    assert message == {"kind": "ring", "schema": schema}
    assert [os.fstat(fd).st_ino for fd in fds] == [os.fstat(reader).st_ino] * MAX_DESCRIPTORS
    assert right.receive(1) == ({"kind": "wake"}, [])
    close_all([*fds, reader, writer])
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_is_too_large_is_refused(
    pair: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = pair
    monkeypatch.setattr("pyengine.shm.channel.MAX_MESSAGE_BYTES", INLINE_BYTES)
    with pytest.raises(ValueError, match="bytes"):
        left.send("warning", text="x" * INLINE_BYTES)
    with pytest.raises(ValueError, match="descriptors"):
        left.send("ring", fds=[0] * (MAX_DESCRIPTORS + 1))
    assert right.receive(0) is None


def test_the_end_of_the_other_side_is_seen(pair: tuple[Channel, Channel]) -> None:
    left, right = pair
    left.send("wake")
    left.close()
    assert right.receive(1) == ({"kind": "wake"}, [])
    with pytest.raises(ClosedError):
        right.receive(1)
    with pytest.raises(ClosedError):
        right.send("wake")


def test_a_forked_child_does_not_keep_the_channel_open(pair: tuple[Channel, Channel]) -> None:
    left, right = pair
    gate_reader, gate_writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(gate_writer)
        os.read(gate_reader, 1)
        os._exit(0)
    left.close()
    with pytest.raises(ClosedError):
        right.receive(5)
    close_all([gate_writer, gate_reader])
    os.waitpid(pid, 0)
