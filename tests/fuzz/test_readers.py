"""Changed files, for every reader of a run directory: refused by a type of ours, or read."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from readers import READERS
from seeds import BINARY, PARTY, SEEDS, mangled, structures

from pyengine.capture.tensorfile import TensorFile
from pyengine.catalog.generation import Party
from pyengine.errors import DamageError, PyengineError

EXAMPLES = int(os.environ.get("PYENGINE_FUZZ_EXAMPLES", "150"))
SECONDS = 5
BOUND_BYTES = 64 * 1024 * 1024

thorough = settings(
    max_examples=EXAMPLES,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TREES = sorted(SEEDS.keys() - BINARY)


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Fail where the body takes more processor time than SECONDS, or more memory than a small file
    explains; one that waits for ever meets the timeout of all tests."""

    def late(*_: object) -> None:
        raise AssertionError(f"still reading after {SECONDS} s")

    former = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, former)
    assert peak < BOUND_BYTES, f"{peak} bytes for a small file"


def refuse_or_read(name: str, data: bytes) -> None:
    with bounded(), contextlib.suppress(PyengineError):
        READERS[name](data)


@pytest.mark.parametrize("name", sorted(SEEDS))
def test_the_unchanged_file_is_read(name: str) -> None:
    READERS[name](SEEDS[name])


@pytest.mark.parametrize("name", sorted(SEEDS))
def test_mangled_bytes_are_refused_or_read(name: str) -> None:
    @thorough
    @given(mangled(name))
    def check(data: bytes) -> None:
        refuse_or_read(name, data)

    check()


@pytest.mark.parametrize("name", TREES)
def test_changed_structures_are_refused_or_read(name: str) -> None:
    @thorough
    @given(structures(name))
    def check(data: bytes) -> None:
        refuse_or_read(name, data)

    check()


@pytest.mark.parametrize("name", sorted(READERS))
def test_any_bytes_are_refused_or_read(name: str) -> None:
    @thorough
    @given(st.binary(max_size=512))
    def check(data: bytes) -> None:
        refuse_or_read(name, data)

    check()


def tensors(**entry: object) -> bytes:
    header = json.dumps({"a": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0], **entry}})
    return len(header).to_bytes(8, "little") + header.encode()


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": ["F32"]},
        {"shape": [0, 2**62]},
        {"shape": [0, 2**70]},
        {"shape": [0] * 100},
        {"shape": [1, True]},
    ],
)
def test_absurd_entries_of_a_tensor_file_are_damage(entry: dict[str, object]) -> None:
    TensorFile(tensors(), "plain.safetensors")
    with pytest.raises(DamageError):
        TensorFile(tensors(**entry), "absurd.safetensors")


def test_a_party_with_an_infinite_rank_is_passed_over() -> None:
    data = json.dumps({**PARTY, "rank": float("inf")}).encode()
    party = READERS["generation"](data)
    assert party == Party(None, "an unknown time")
    assert READERS["generation"](json.dumps(PARTY).encode()) != party
