"""What a prioritised ring means, slowly: one dict a lane, a binary tree of Python floats."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pyengine import PrioritizedReplayBuffer

SMALL = float(np.float32(1e-6))


class ReferenceTree:
    """Sums and minima over leaves and zeros up to a power of eight: nodes are left + right."""

    def __init__(self, leaves: list[float]) -> None:
        size = 8
        while size < len(leaves):
            size *= 8
        self.levels = [[*leaves, *[0.0] * (size - len(leaves))]]
        self.lows = [self.levels[0]]
        while len(self.levels[-1]) > 1:
            below, lows = self.levels[-1], self.lows[-1]
            self.levels.append([a + b for a, b in zip(below[::2], below[1::2], strict=True)])
            pairs = zip(lows[::2], lows[1::2], strict=True)
            self.lows.append([min((x for x in pair if x > 0), default=0.0) for pair in pairs])

    @property
    def total(self) -> float:
        return self.levels[-1][0]

    @property
    def lowest(self) -> float:
        return self.lows[-1][0]

    def find(self, target: float) -> int:
        node = 0
        for level in reversed(self.levels[:-1]):
            left, right = level[2 * node], level[2 * node + 1]
            node *= 2
            if target >= left and right > 0:
                target -= left
                node += 1
        return node


class ReferencePriorities:
    """Lanes of {row id: stored priority (None: dropped)}, drawn as PrioritizedReplayBuffer does."""

    def __init__(
        self,
        capacity: int,
        lanes: int,
        *,
        seed: int = 1,
        alpha: float = 0.6,
        epsilon: float = 1e-6,
        stratified: bool = True,
        normalize: str = "buffer",
    ) -> None:
        self.alpha, self.epsilon = alpha, epsilon
        self.stratified, self.normalize = stratified, normalize
        self.rows_per_lane = capacity // lanes
        self.lanes: list[dict[int, float | None]] = [{} for _ in range(lanes)]
        self.totals = [0] * lanes
        self.highest = 1.0
        self.draws = 0
        self.random = np.random.Generator(np.random.PCG64(seed))

    def store(self, given: float) -> float:
        return float(np.float32(float(np.float32(given)) + self.epsilon))

    def add(self, lane: int, given: float | None = None) -> None:
        stored = self.highest if given is None else self.store(given)
        self.highest = max(self.highest, stored)
        self.lanes[lane][self.totals[lane]] = stored
        self.totals[lane] += 1
        self.lanes[lane].pop(self.totals[lane] - 1 - self.rows_per_lane, None)

    def row(self, ref: int) -> float | None:
        return self.lanes[ref % len(self.lanes)].get(ref // len(self.lanes))

    def set(self, refs: Any, stored: Any) -> int:
        """Store priorities of refs that are there; return how many are not."""
        refs, lost = list(map(int, refs)), 0
        for ref, value in zip(refs, stored, strict=True):
            if self.row(ref) is None:
                lost += 1
            else:
                self.lanes[ref % len(self.lanes)][ref // len(self.lanes)] = float(value)
        for ref in refs:
            self.highest = max(self.highest, self.row(ref) or 0.0)
        return lost

    def leaf(self, stored: float | None) -> float:
        return math.pow(stored, self.alpha) if stored else 0.0

    def leaves(self) -> list[float]:
        found = [0.0] * (self.rows_per_lane * len(self.lanes))
        for lane, rows in enumerate(self.lanes):
            for number, stored in rows.items():
                found[lane * self.rows_per_lane + number % self.rows_per_lane] = self.leaf(stored)
        return found

    def refs(self) -> dict[int, int]:
        """{position: ref} of the rows that are there."""
        lanes = len(self.lanes)
        return {
            lane * self.rows_per_lane + number % self.rows_per_lane: number * lanes + lane
            for lane, rows in enumerate(self.lanes)
            for number, stored in rows.items()
            if stored is not None
        }

    def sample(self, count: int, beta: float) -> tuple[list[int], list[np.float32]]:
        tree, leaves, refs = ReferenceTree(self.leaves()), self.leaves(), self.refs()
        units = [float(self.random.random()) for _ in range(count)]
        if self.stratified:
            units = [(i + unit) / count for i, unit in enumerate(units)]
        places = [tree.find(unit * tree.total) for unit in units]
        least = tree.lowest
        if self.normalize == "batch":
            least = min(leaves[place] for place in places)
        self.draws += 1
        weights = [np.float32(math.pow(least / leaves[place], beta)) for place in places]
        return [refs[place] for place in places], weights


def some_priorities(random: np.random.Generator, shape: Any) -> Any:
    """Of very different sizes, ties and zeros among them."""
    values = 10.0 ** random.uniform(-30, 30, shape)
    return np.where(random.random(shape) < 0.3, random.integers(0, 3, shape), values)


def check_tree(ring: PrioritizedReplayBuffer, leaves: list[float]) -> None:
    """Every node is what the reference computes anew from the leaves."""
    tree = ReferenceTree(leaves)
    for level, (sums, lows) in enumerate(ring.storage.core.priority_tree()):
        for found, expected in ((sums, tree.levels), (lows, tree.lows)):
            nodes = np.frombuffer(found, np.float64)
            assert nodes.tolist() == expected[3 * level][: len(nodes)]
            assert not any(expected[3 * level][len(nodes) :])
