"""The C core without Python: clean under sanitizers, and tests that notice when it is not.

PYENGINE_SANITIZE_SECONDS makes the runs longer (`make sanitize`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from sanitized import CORE, Build, run

SECONDS = float(os.environ.get("PYENGINE_SANITIZE_SECONDS", "3"))

THREADS = "thread"
MEMORY = "address,undefined"

pytestmark = pytest.mark.timeout(300 + 4 * SECONDS)


@pytest.mark.parametrize("sanitizer", [THREADS, MEMORY])
def test_the_protocol_is_clean_under_stress(build: Build, sanitizer: str) -> None:
    ended = run(build("stress", sanitizer), SECONDS, 1, timeout=120 + 3 * SECONDS)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-8000:]
    rounds = [line.split() for line in ended.stdout.splitlines() if line.startswith("seed")]
    counts = dict.fromkeys(rounds[0][2::2], 0)
    for words in rounds:
        for name, value in zip(words[2::2], words[3::2], strict=True):
            counts[name] += int(value)
    # What was never met was not tested.
    met = ("gathered", "persisted", "lost", "committed", "cancelled", "deaths", "waits")
    assert all(counts[name] > 0 for name in met), counts


def test_native_readers_survive_damaged_bytes(build: Build) -> None:
    rounds = int(4000 * max(1.0, SECONDS / 3))
    ended = run(build("hostile", MEMORY), rounds, 1, timeout=120 + 3 * SECONDS)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-8000:]


def test_the_sum_tree_is_the_plain_one(build: Build) -> None:
    ended = run(build("sum_tree", MEMORY), int(3000 * max(1.0, SECONDS / 3)), 1)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-8000:]


@pytest.mark.parametrize("sanitizer", [THREADS, MEMORY])
def test_a_copy_of_many_threads_has_an_end_for_all_of_them(build: Build, sanitizer: str) -> None:
    ended = run(build("copying", sanitizer), int(8 * max(1.0, SECONDS / 3)))
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-8000:]


BREAKS = {
    "a swap that is a plain store": (
        "control.h",
        """  return atomic_compare_exchange_strong_explicit(word, &from, to, memory_order_acq_rel,
                                                 memory_order_acquire);""",
        """  (void)from;
  atomic_store_explicit(word, to, memory_order_release);
  return true;""",
    ),
    "a held segment that is freed": (
        "slots.c",
        "if (held && pe_word_state(word) != PE_SLOT_PERSISTED) return false;",
        "",
    ),
    "a count that does not publish its rows": (
        "append.c",
        "atomic_store_explicit(&lane->total_count, total, memory_order_release)",
        "atomic_store_explicit(&lane->total_count, total, memory_order_relaxed)",
    ),
    "a gather without the lock": (
        "ring.c",
        "return admit(ring, pthread_rwlock_rdlock(&ring->lock));",
        "return admit(ring, 0);",
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_the_stress_notices(build: Build, tmp_path: Path, name: str) -> None:
    unit, before, after = BREAKS[name]
    core = tmp_path / "core"
    shutil.copytree(CORE, core)
    text = (core / unit).read_text()
    assert text.count(before) == 1, "the line that this test breaks is written otherwise now"
    (core / unit).write_text(text.replace(before, after))
    try:
        ended = run(build("stress", THREADS, core), 10, 1, timeout=40)
    except subprocess.TimeoutExpired:
        return  # a core that loops for ever was noticed too
    assert ended.returncode != 0, ended.stdout
    assert "not true" in ended.stderr or "data race" in ended.stderr


def test_the_readers_are_needed_to_refuse(build: Build, tmp_path: Path) -> None:
    core = tmp_path / "core"
    shutil.copytree(CORE, core)
    text = (core / "hash.c").read_text()
    before = "if (!field_is_sound(header, &pe_segment_fields(header)[f])) return false;"
    assert text.count(before) == 1
    (core / "hash.c").write_text(text.replace(before, ""))
    ended = run(build("hostile", MEMORY, core), 4000, 1)
    assert ended.returncode != 0
    assert "AddressSanitizer" in ended.stderr or "runtime error" in ended.stderr
