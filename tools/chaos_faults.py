"""The faults: which there are, when they strike by seed, and how each is done to a living run.

Everything is drawn before the run: kinds, steps, and one number a fault that decides what the fault
needs (which file, which byte, how long). Damage is done between the death of an agent and the next
start, as by a disk: the agent is killed, its writer drains, then the newest snapshot is hit.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from chaos_scene import Scene

HOLD_SECONDS = (1.0, 3.0)
"""How long a writer stays frozen, a disk full."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault to come: it strikes when the agent has made `step`. `draw` is in [0, 1); where
    `is_hasty` the next fault does not wait until a new snapshot is durable after this one."""

    kind: str
    step: int
    draw: float
    is_hasty: bool

    @property
    def hold_seconds(self) -> float:
        low, high = HOLD_SECONDS
        return low + (high - low) * self.draw


@dataclass(frozen=True, slots=True)
class Kind:
    """What a kind of fault is. `weight`: how often it comes; `starts_again`: the agent dies by it;
    `rows`: what may be lost of the replay: nothing, the rows of one open segment ("open"), or what
    the newest good snapshot does not hold ("snapshot")."""

    strike: Callable[[Scene, Fault], str]
    weight: int
    starts_again: bool
    rows: str
    is_exact: bool = True
    """Whether what goes on afterwards is what would have been without the fault, by bits."""


def _kill_learner(scene: Scene, fault: Fault) -> str:
    return f"SIGKILL to {scene.kill_learner()}"


def _kill_writer(scene: Scene, fault: Fault) -> str:
    return f"SIGKILL to {scene.signal_writer(signal.SIGKILL)}"


def _kill_both(scene: Scene, fault: Fault) -> str:
    writer = scene.signal_writer(signal.SIGKILL)
    return f"SIGKILL to {writer} and {scene.kill_learner()}"


def _freeze_writer(scene: Scene, fault: Fault) -> str:
    pid = scene.signal_writer(signal.SIGSTOP)
    scene.wait(fault.hold_seconds)
    scene.signal_one(pid, signal.SIGCONT)
    return f"SIGSTOP to {pid} for {fault.hold_seconds:.1f} s"


def _freeze_writer_for_good(scene: Scene, fault: Fault) -> str:
    return f"SIGSTOP to {scene.signal_writer(signal.SIGSTOP)}, for good"


def _freeze_writer_kill_learner(scene: Scene, fault: Fault) -> str:
    writer = scene.signal_writer(signal.SIGSTOP)
    return f"SIGSTOP to {writer}, SIGKILL to {scene.kill_learner()}"


def _freeze_learner(scene: Scene, fault: Fault) -> str:
    pid = scene.learner()
    scene.signal_one(pid, signal.SIGSTOP)
    return f"SIGSTOP to {pid}"


def _hang_learner(scene: Scene, fault: Fault) -> str:
    pid = scene.learner()
    scene.signal_one(pid, signal.SIGUSR1)
    return f"{pid} waits for ever"


def _fill_disk(scene: Scene, fault: Fault) -> str:
    written = scene.disk.fill()
    try:
        scene.wait(fault.hold_seconds)
    finally:
        scene.disk.empty()
    return f"{written >> 20} MB for {fault.hold_seconds:.1f} s"


def _flip_bit(scene: Scene, fault: Fault) -> str:
    scene.kill_and_drain()
    path = _pick(scene.own_files(scene.newest()), fault)
    offset = int(random.Random(fault.draw).random() * path.stat().st_size)
    return _flip(scene, path, offset)


def _flip_old_row(scene: Scene, fault: Fault) -> str:
    """Hit a row in a segment that all snapshots share; in the second half of its file are rows."""
    scene.kill_and_drain()
    segments = scene.segments(scene.newest())
    if not segments:
        raise LookupError("no segment is full yet")
    path = _pick(segments, fault)
    offset = int((1 + random.Random(fault.draw).random()) / 2 * path.stat().st_size)
    return _flip(scene, path, offset, is_shared=True)


def _truncate(scene: Scene, fault: Fault) -> str:
    scene.kill_and_drain()
    path = _pick(scene.own_files(scene.newest()), fault)
    size = int(random.Random(fault.draw).random() * path.stat().st_size)
    os.truncate(path, size)
    return scene.harmed(path, f"cut to {size} bytes")


def _delete_file(scene: Scene, fault: Fault) -> str:
    scene.kill_and_drain()
    path = _pick(scene.files(scene.newest()), fault)
    path.unlink()
    return scene.harmed(path, "deleted")


def _delete_manifest(scene: Scene, fault: Fault) -> str:
    scene.kill_and_drain()
    path = scene.newest() / "manifest.json"
    path.unlink()
    return scene.harmed(path, "deleted")


def _delete_latest(scene: Scene, fault: Fault) -> str:
    scene.kill_and_drain()
    (scene.run_dir / "latest").unlink(missing_ok=True)
    return "latest deleted"


def _flip(scene: Scene, path: Path, offset: int, *, is_shared: bool = False) -> str:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))
        file.flush()
        os.fsync(file.fileno())
    text = f"bit 4 of byte {offset} flipped"
    return f"{path.name}: {text}" if is_shared else scene.harmed(path, text)


def _pick(paths: list[Path], fault: Fault) -> Path:
    return paths[int(fault.draw * len(paths))]


KINDS = {
    "kill learner": Kind(_kill_learner, 6, True, "nothing"),
    "kill writer": Kind(_kill_writer, 5, False, "nothing"),
    "kill both": Kind(_kill_both, 5, True, "open"),
    "freeze writer": Kind(_freeze_writer, 4, False, "nothing"),
    "freeze writer for good": Kind(_freeze_writer_for_good, 2, False, "nothing"),
    "freeze writer, kill learner": Kind(_freeze_writer_kill_learner, 3, True, "open"),
    "freeze learner": Kind(_freeze_learner, 3, True, "nothing"),
    "hang learner": Kind(_hang_learner, 2, True, "nothing"),
    "fill disk": Kind(_fill_disk, 4, False, "snapshot"),
    "flip a bit": Kind(_flip_bit, 4, True, "snapshot"),
    "flip an old row": Kind(_flip_old_row, 2, True, "snapshot", is_exact=False),
    "truncate a file": Kind(_truncate, 3, True, "snapshot"),
    "delete a file": Kind(_delete_file, 3, True, "snapshot"),
    "delete the manifest": Kind(_delete_manifest, 2, True, "snapshot"),
    "delete latest": Kind(_delete_latest, 2, True, "nothing"),
}
"""By name; the weights add up to 50. A full disk may kill the agent, or not."""


def draw_faults(seed: int, count: int, steps: int, kinds: Collection[str]) -> list[Fault]:
    """Return `count` faults by seed: kinds by weight, steps spread at random over the run."""
    chance = random.Random(f"chaos {seed}")
    bag: list[str] = []
    while len(bag) < count:
        full = [name for name in kinds for _ in range(KINDS[name].weight)]
        bag += chance.sample(full, len(full))
    first, last = int(0.05 * steps), int(0.95 * steps)
    width = (last - first) / max(1, count)
    return [
        Fault(
            kind=bag[index],
            step=first + int((index + chance.random()) * width),
            draw=chance.random(),
            is_hasty=chance.random() < 0.25,
        )
        for index in range(count)
    ]
