"""The library's tree of weights: its leaves are the state, the rest is made of them."""

from __future__ import annotations

from typing import Any

from tianshou.data import SegmentTree


def leaves_of(tree: SegmentTree) -> Any:
    """Return the values of a tree, one a row, not copied."""
    return tree._value[tree._bound : tree._bound + len(tree)]


def fill_tree(tree: SegmentTree, values: Any) -> None:
    """Make a tree of these values."""
    nodes = tree._value
    nodes[...] = 0
    leaves_of(tree)[...] = values
    first = tree._bound // 2
    while first:
        below = nodes[2 * first : 4 * first]
        nodes[first : 2 * first] = below[::2] + below[1::2]
        first //= 2
