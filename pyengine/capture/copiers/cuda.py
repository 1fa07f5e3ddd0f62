"""Copies from CUDA devices: pinned slot, side stream, own events.

The slot's memory is registered with the driver once, so that copies run at the link's full rate
without the CPU; torch does not know that memory, so events of our own order everything. Per device,
the side stream waits for what the compute stream has queued (the state of the cut), copies, and
records an event; the compute stream waits for it, so that no later kernel overwrites a source, and
`finish` waits for it, so that a slot is published whole. Small tensors that lie next to each other
in the slot are first gathered on the device, so that thousands of them are a few transfers. Where
registration fails, copies go through pageable memory, three to four times slower, and one warning
says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from pyengine.capture.copiers.cpu import CpuCopier
from pyengine.events import logger, warn_once

REGISTER_LIMIT_BYTES = 64 << 30
"""Longest range registered in one call; one of 512 GiB fails."""

GATHER_BYTES = 64 * 1024
"""Tensors below this size are gathered on the device before they are sent."""

_ALREADY_REGISTERED = 712

_cuda: Any = torch.cuda
"""torch leaves parts of this module without types."""

Pair = tuple[torch.Tensor, torch.Tensor]


class CudaCopier:
    """Copies from any device; CPU tensors go the CPU's way while transfers run.

    Owns the registration of attached slots and one side stream per device. Not thread-safe.
    """

    def __init__(self) -> None:
        self._cpu = CpuCopier()
        self._streams: dict[int, torch.cuda.Stream] = {}
        self._pending: list[tuple[int, torch.cuda.Event]] = []
        self._kept: list[torch.Tensor] = []
        self._registered: dict[int, list[int]] = {}
        self._warned: set[str] = set()

    def attach(self, memory: Any) -> None:
        """Register the memory as pinned; without success say so once and go on."""
        view = torch.frombuffer(memory, dtype=torch.uint8)
        start, size = view.data_ptr(), view.numel()
        done: list[int] = []
        for offset in range(0, size, REGISTER_LIMIT_BYTES):
            length = min(REGISTER_LIMIT_BYTES, size - offset)
            if not self._register(start + offset, length):
                self._unregister(done)
                return
            done.append(start + offset)
        self._registered[start] = done

    def copy(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
        """Start all transfers, then copy what is on the CPU beside them."""
        by_device: dict[int, list[Pair]] = {}
        here: list[Pair] = []
        for target, source in zip(targets, sources, strict=True):
            if source.device.type == "cuda":
                by_device.setdefault(source.device.index, []).append((target, source))
            else:
                here.append((target, source))
        for index, pairs in by_device.items():
            self._send(index, pairs)
        if here:
            self._cpu.copy([target for target, _ in here], [source for _, source in here])

    def finish(self) -> None:
        """Wait for every transfer; only then is the slot whole."""
        try:
            for _, event in self._pending:
                event.synchronize()
        finally:
            self._pending.clear()
            self._kept.clear()

    def release(self, memory: Any) -> None:
        """Finish, then take the registration back, before the memory is unmapped."""
        self.finish()
        start = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
        self._unregister(self._registered.pop(start, []))

    def _send(self, index: int, pairs: list[Pair]) -> None:
        stream = self._streams.get(index)
        if stream is None:
            stream = self._streams[index] = _cuda.Stream(device=index)
        compute = torch.cuda.current_stream(index)
        stream.wait_stream(compute)
        with torch.no_grad(), torch.cuda.stream(stream):
            for target, source in gathered(pairs, self._kept):
                target.copy_(source, non_blocking=True)
            event = _cuda.Event()
            event.record(stream)
        compute.wait_event(event)
        self._pending.append((index, event))

    def _register(self, address: int, size: int) -> bool:
        try:
            code = int(_runtime().cudaHostRegister(address, size, 0))
        except (RuntimeError, AssertionError) as error:
            self._degrade(str(error))
            return False
        if code not in (0, _ALREADY_REGISTERED):
            self._degrade(f"cudaHostRegister of {size} bytes returned {code}")
            _clear_error()
            return False
        return True

    def _degrade(self, why: str) -> None:
        warn_once(
            self._warned,
            "pageable",
            "staging memory could not be pinned (%s): snapshots copy from the GPU through pageable "
            "memory, three to four times slower",
            why,
        )

    def _unregister(self, addresses: list[int]) -> None:
        for address in addresses:
            code = int(_runtime().cudaHostUnregister(address))
            if code:
                logger.warning("cudaHostUnregister returned %d", code)
                _clear_error()


def gathered(pairs: list[Pair], kept: list[torch.Tensor]) -> Iterator[Pair]:
    """Yield the transfers for `pairs`: whole runs of small neighbours, large ones as they are.

    Sources of transfers that are temporaries are added to `kept`: they must outlive the transfer.
    """
    for run in _runs(pairs):
        if len(run) == 1:
            target, source = run[0]
            if not source.is_contiguous():
                source = source.contiguous()
                kept.append(source)
            yield target, source
            continue
        packed = torch.cat([source.detach().reshape(-1) for _, source in run])
        kept.append(packed)
        yield run[0][0].as_strided((packed.numel(),), (1,)), packed


def _runs(pairs: list[Pair]) -> Iterator[list[Pair]]:
    """Split pairs into runs of small tensors of one dtype whose targets touch each other."""
    run: list[Pair] = []
    end = -1
    for target, source in sorted(pairs, key=lambda pair: pair[0].data_ptr()):
        size = target.numel() * target.element_size()
        fits = run and target.data_ptr() == end and target.dtype == run[0][0].dtype
        if run and not (fits and size < GATHER_BYTES):
            yield run
            run = []
        run.append((target, source))
        end = target.data_ptr() + size
        if size >= GATHER_BYTES:
            yield run
            run = []
    if run:
        yield run


def _runtime() -> Any:
    return _cuda.cudart()


def _clear_error() -> None:
    """Meet the pending error here; otherwise the next unrelated kernel launch would report it."""
    try:
        torch.zeros(1, device="cuda").add_(1)
    except (RuntimeError, AssertionError) as error:
        logger.debug("cleared CUDA error: %s", error)
