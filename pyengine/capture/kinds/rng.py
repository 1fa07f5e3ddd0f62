"""Random number generators: single ones, and those of the process."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np

from pyengine.capture.component import Captured, Component, Decoded, Phase
from pyengine.capture.lazy_torch import is_cuda_used, is_torch_loaded
from pyengine.capture.leaves import RngLeaf, TensorLeaf
from pyengine.capture.merge import Merge
from pyengine.capture.rngs import (
    check_rng_state,
    make_rng,
    python_state,
    python_state_tuple,
)
from pyengine.capture.tree import Encoder

if TYPE_CHECKING:
    import torch

PROCESS_RNG = "process_rng"
"""Name of the component that holds the process's own generators."""


class RngComponent(Component):
    """One generator: NumPy's, random.Random or torch.Generator."""

    kind = "rng"
    phase = Phase.RNG

    def __init__(self, name: str, rng: Any) -> None:
        super().__init__(name)
        self.rng = rng

    def capture(self) -> Captured:
        """Return the generator's state."""
        encoder = Encoder(self.name)
        structure = {"of": "object", "tree": encoder.encode(self.rng)}
        return Captured(self.name, self.kind, structure, encoder.names, encoder.values)

    def check(self, decoded: Decoded) -> tuple[str, ...]:
        self._plan(decoded)
        return ()

    def _plan(self, decoded: Decoded) -> Merge:
        if not isinstance(decoded.value, RngLeaf):
            raise self._mismatch("no single generator", "one", "those of a process")
        merge = Merge(self.name)
        merge.value(self.rng, decoded.value)
        return merge

    def apply(self, decoded: Decoded) -> None:
        self._plan(decoded).run_late()


class ProcessRngComponent(Component):
    """The generators behind `random`, `numpy.random`, `torch` and every CUDA device.

    torch's is saved once torch is loaded, CUDA's once CUDA is in use: before, nothing was drawn
    from them. On restore, device i gets the state of device i; states of devices that this machine
    lacks are left out, and `check` says so.
    """

    kind = "rng"
    phase = Phase.RNG

    def __init__(self, name: str = PROCESS_RNG) -> None:
        super().__init__(name)

    def capture(self) -> Captured:
        """Return the state of all of them."""
        encoder = Encoder(self.name)
        structure = {"of": "process", "tree": encoder.encode(process_generators())}
        return Captured(self.name, self.kind, structure, encoder.names, encoder.values)

    def check(self, decoded: Decoded) -> tuple[str, ...]:
        state = decoded.value
        if isinstance(state, RngLeaf):
            raise self._mismatch("not the process's generators", "those of a process", "one")
        try:
            make_rng("python.Random", state["python"])
            make_rng("numpy.RandomState", state["numpy"])
            if state["torch"] is not None:
                _check_torch_state(state["torch"], state["cuda"])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise self._mismatch(f"broken state: {error}", "generators", "damage") from None
        if state["torch"] is None:
            note = f"{self.name}: torch was not loaded when this was saved; its generators stay"
            return (note,) if is_torch_loaded() else ()
        here, there = _cuda_count(), len(state["cuda"])
        lost = [f"no cuda:{i} here, its generator is left out" for i in range(here, there)]
        if is_cuda_used() and there:
            gained = range(there, here)
            lost += [f"no cuda:{i} was there, its generator stays as it is" for i in gained]
        return tuple(f"{self.name}: {line}" for line in lost)

    def apply(self, decoded: Decoded) -> None:
        state = dict(decoded.value)
        if state["torch"] is not None:
            state["torch"] = state["torch"].value
        state["cuda"] = [leaf.value for leaf in state["cuda"]]
        set_process_generators(state)


def process_generators() -> dict[str, Any]:
    """Return the state of the process's generators, for `set_process_generators`.

    "torch" is None and "cuda" empty while they are not in use: then nothing was drawn from them.
    """
    return {
        "python": python_state(random.getstate()),
        "numpy": np.random.get_state(legacy=False),
        "torch": _torch_state(),
        "cuda": _cuda_states(),
    }


def set_process_generators(state: dict[str, Any]) -> None:
    """Put back what `process_generators` returned; states of devices that are not here are left."""
    random.setstate(python_state_tuple(state["python"]))
    np.random.set_state(state["numpy"])
    if state["torch"] is None:
        return
    import torch

    torch.set_rng_state(state["torch"].clone())
    for index, saved in enumerate(state["cuda"][: _cuda_count()]):
        torch.cuda.set_rng_state(saved.clone(), index)


def _torch_state() -> torch.Tensor | None:
    if not is_torch_loaded():
        return None
    import torch

    return torch.get_rng_state()


def _check_torch_state(cpu: TensorLeaf, cuda: list[TensorLeaf]) -> None:
    import torch

    check_rng_state(torch.default_generator, {"device": "cpu", "bytes": cpu.value})
    for index, leaf in enumerate(cuda[: _cuda_count()]):
        generator = torch.Generator(torch.device("cuda", index))
        check_rng_state(generator, {"bytes": leaf.value})


def _cuda_count() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _cuda_states() -> list[torch.Tensor]:
    """Return the state of every device; none before CUDA is used: then nothing was drawn."""
    if not is_cuda_used():
        return []
    import torch

    return list(torch.cuda.get_rng_state_all())
