"""Blocks that lie one behind the other, hashed natively, against the xxhash package."""

from __future__ import annotations

from array import array

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from pyengine._native.hashing import find_bad_block


@given(
    blocks=st.lists(st.binary(max_size=700), max_size=20),
    spoilt=st.lists(st.integers(0, 19), max_size=3),
    behind=st.binary(max_size=9),
)
def test_the_first_block_with_another_hash_is_found(blocks, spoilt, behind):
    hashes = [xxhash.xxh3_64_intdigest(block) for block in blocks]
    for index in spoilt:
        if index < len(blocks):
            hashes[index] ^= 1
    expected = next((i for i, block in enumerate(blocks)
                     if hashes[i] != xxhash.xxh3_64_intdigest(block)), -1)  # fmt: skip
    sizes = array("Q", map(len, blocks))
    assert find_bad_block(b"".join(blocks) + behind, sizes, array("Q", hashes)) == expected


@pytest.mark.parametrize(
    ("sizes", "hashes"), [([4, 5], [0, 0]), ([2**64 - 1, 1], [0, 0]), ([4], []), ([], [0])]
)
def test_blocks_that_leave_the_data_or_lack_a_hash_are_refused(sizes, hashes):
    with pytest.raises(ValueError, match=r"leave the buffer|one expected hash"):
        find_bad_block(bytes(8), array("Q", sizes), array("Q", hashes))
