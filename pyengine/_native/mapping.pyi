from types import TracebackType

class Mapping:
    """One memory mapping and its lifetime. Offers the buffer protocol: one-dimensional bytes.

    Views (memoryview, ndarray) keep the object alive; it unmaps when closed or collected. Not for
    use in a forked child: `shared` mappings do not exist there, and `disarm` makes the object
    forget its range without unmapping what the child may have put in its place.
    """

    address: int
    size: int
    closed: bool
    @staticmethod
    def shared(fd: int, size: int) -> Mapping:
        """Map `size` bytes of shared memory for reading and writing; not inherited by a fork."""
    @staticmethod
    def file(fd: int, size: int) -> Mapping:
        """Map `size` bytes of a file read-only, without read-ahead."""
    def populate(self, offset: int, length: int, write: bool = False) -> None:
        """Fault pages in. OSError where one cannot be had, instead of SIGBUS later."""
    def advise_willneed(self, offset: int, length: int) -> None:
        """Ask for pages to be read soon; does not block on them."""
    def close(self) -> None:
        """Unmap. BufferError while a view is in use. A second call does nothing."""
    def disarm(self) -> None:
        """In a forked child: forget the range without unmapping it."""
    def __enter__(self) -> Mapping: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def reserve(fd: int, offset: int, length: int) -> None:
    """Give a range of a shared-memory file its pages; OSError. Signals wait for the end."""
