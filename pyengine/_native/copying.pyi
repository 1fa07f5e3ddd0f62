from typing_extensions import Buffer

class CopyJob:
    """Copies of many ranges of memory, cut into chunks of 1 MiB that threads take in turn.

    `targets` and `sources` are addresses, `sizes` bytes: one-dimensional buffers of uint64 and of
    one length (ValueError), read once. Whoever makes a job keeps those ranges mapped until `wait`
    has returned; nothing here knows whose memory it is. Any thread may call any method.
    """

    size_bytes: int
    """Bytes of all ranges."""

    def __init__(self, targets: Buffer, sources: Buffer, sizes: Buffer) -> None: ...
    def work(self) -> None:
        """Copy until no chunk is left to take. The GIL is released."""
    def stop(self) -> None:
        """Drop the chunks that nobody has taken yet. Does not block."""
    def wait(self) -> bool:
        """Wait for the chunks that others have taken (1 MiB each), whether all were copied.

        Only after `work` or `stop`, here or in another thread. The GIL is released.
        """
