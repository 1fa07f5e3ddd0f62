"""Checks of what a restore has put back, run before generators are set and training goes on.

`restore(sanity=check)` calls any function without arguments. Two ready ones:

    engine.restore(sanity=forward_pass(policy, observations))
    engine.restore(sanity=trial_update(policy, optimizer, lambda net: net(batch).square().mean()))

Both work on deep copies under generators that are put back afterwards (torch's, those of its CUDA
devices, NumPy's and Python's), so that neither a live value nor a later random number changes.
They need the memory of the copies for as long as they run. A generator that belongs to something
which is neither copied nor one of these, the ring's sampler for one, must not be drawn from in
`loss` or in an input.
"""

from __future__ import annotations

import contextlib
import copy
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pyengine.capture.lazy_torch import is_cuda_used
from pyengine.catalog.info import SnapshotInfo
from pyengine.errors import SanityCheckError

if TYPE_CHECKING:
    import torch

_SHOWN = 8


def forward_pass(module: torch.nn.Module, *inputs: Any) -> Callable[[], None]:
    """Return a check that calls a copy of `module` with `inputs` and looks at what comes out.

    Each input is a tensor, an array, a tree of them (dict, list, tuple), or a function that gives
    one when the check runs: rows that were restored, say. The copy has the module's mode (train or
    eval) and takes no gradients. The check raises SanityCheckError where an output, or a tensor in
    it, is not finite; what the module raises comes through it.
    """

    def check() -> None:
        import torch

        with _generators_kept():
            twin = copy.deepcopy(module)
            given = [_copied(value() if callable(value) else value) for value in inputs]
            with torch.no_grad():
                output = twin(*given)
        bad = [place for place, value in _leaves(output, "output") if not _is_finite(value)]
        if bad:
            raise SanityCheckError(
                f"a forward pass gives values that are not finite: {_shown(bad)}"
            )

    return check


def trial_update(
    module: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[Any], torch.Tensor],
) -> Callable[[], None]:
    """Return a check that makes one step of training on copies of `module` and `optimizer`.

    `loss` is called with the copy of the module and returns one number (a tensor) to minimise; it
    must reach the parameters through that copy. The check raises SanityCheckError where the loss, a
    gradient or a parameter after the step is not finite; what the objects raise comes through it.
    """

    def check() -> None:
        import torch

        with _generators_kept(), torch.enable_grad():
            # With one memo, so that the copied optimizer steps the copied parameters. Hooks and
            # what schedulers wrap around `step` belong to the live one and stay there.
            twin, stepper = copy.deepcopy((module, optimizer))
            _check_apart(optimizer, stepper)
            stepper.zero_grad()
            value = loss(twin)
            _check_loss(value)
            value.backward()  # type: ignore[no-untyped-call]  # torch annotates nothing there
            _check_finite("gradients", twin, lambda parameter: parameter.grad)
            stepper.step()
            _check_finite("parameters after a step", twin, lambda parameter: parameter)

    return check


def run_check(check: Callable[[], object], info: SnapshotInfo, not_finite: Sequence[str]) -> None:
    """Run a caller's check of the snapshot that was put back; SanityCheckError where it fails."""
    if not_finite:
        raise SanityCheckError(
            f"{info.path} was put back and has parameters that are not finite: "
            f"{_shown(not_finite)}. {_ADVICE}"
        )
    try:
        result = check()
    except Exception as error:  # the caller's own code: whatever it raises is its verdict
        raise SanityCheckError(
            f"{info.path} was put back and failed its check: {type(error).__name__}: {error}. "
            f"{_ADVICE}"
        ) from error
    if _is_false(result):
        raise SanityCheckError(
            f"{info.path} was put back and failed its check, which returned False. {_ADVICE}"
        )


_ADVICE = (
    "Live objects hold that state, and the engine goes on only after a restore: move the snapshot "
    "away and restore an older one, or restore without the check"
)


def _is_false(result: object) -> bool:
    """Whether a check said no: False itself, or one of NumPy's or torch's."""
    if getattr(result, "shape", None) == () and hasattr(result, "item"):
        result = result.item()
    return result is False


@contextlib.contextmanager
def _generators_kept() -> Iterator[None]:
    """Put the process's generators back after the block."""
    import torch

    devices = range(torch.cuda.device_count()) if is_cuda_used() else []
    python, legacy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)


def _copied(value: Any) -> Any:
    """Copy an input: a module may write into what it is given."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copied(item) for item in value)
    return copy.deepcopy(value)


def _leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yield the tensors, arrays and numbers of a tree with their places."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{place}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{place}[{index}]")
    else:
        yield place, value


def _is_finite(value: Any) -> bool:
    import torch

    if isinstance(value, torch.Tensor):
        return bool(value.isfinite().all())
    if isinstance(value, np.ndarray) and value.dtype.kind in "fc":
        return bool(np.isfinite(value).all())
    return not isinstance(value, float) or math.isfinite(value)


def _check_apart(live: torch.optim.Optimizer, copied: torch.optim.Optimizer) -> None:
    """Refuse to step where the copy would step live parameters."""
    known = {id(parameter) for group in live.param_groups for parameter in group["params"]}
    if any(
        id(parameter) in known for group in copied.param_groups for parameter in group["params"]
    ):
        raise SanityCheckError(
            f"a copy of the {type(live).__name__} still holds live parameters: nothing was stepped"
        )


def _check_loss(value: Any) -> None:
    if not hasattr(value, "backward") or value.numel() != 1:
        raise SanityCheckError(
            f"loss(module) must return one number as a tensor, got {value!r:.80}"
        )
    if not _is_finite(value):
        raise SanityCheckError(f"the loss of a trial update is {value.item()}")


def _check_finite(
    what: str, module: torch.nn.Module, pick: Callable[[torch.nn.Parameter], torch.Tensor | None]
) -> None:
    bad = []
    for name, parameter in module.named_parameters():
        value = pick(parameter)
        if value is not None and not _is_finite(value):
            bad.append(name)
    if bad:
        raise SanityCheckError(f"{what} of a trial update are not finite: {_shown(bad)}")


def _shown(found: Sequence[str]) -> str:
    more = len(found) - _SHOWN
    return ", ".join(found[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
