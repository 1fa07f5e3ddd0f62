from typing_extensions import Buffer

def binding() -> str:
    """Return "direct" (XXH3 called in the xxhash extension) or "package" (through Python)."""

def function_address() -> int:
    """Return the address of the bound hash function, for the other native modules."""

def xxh3_64(data: Buffer) -> int:
    """Return XXH3-64 of `data`. The GIL is released from 32 KiB on."""

def seal_image(image: Buffer) -> int:
    """Fill in the block table and trailer of a segment image; return the file's checksum.

    `image` is writable and starts with a header whose counts are set. The GIL is released.
    ValueError where the buffer is shorter than the header says.
    """

def verify_image(image: Buffer) -> int:
    """Return the first block whose hash differs from the block table, or -1.

    The header must have passed `pyengine.format.segment.parse_header`. The GIL is released.
    """

def find_bad_block(data: Buffer, sizes: Buffer, expected: Buffer) -> int:
    """Return the first of blocks that lie one behind the other whose hash is not the expected one,
    or -1.

    `sizes` (bytes) and `expected` are uint64, one for each block; ValueError where the blocks leave
    `data`. The GIL is released.
    """
