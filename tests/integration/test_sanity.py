"""Sanity checks run on what was restored, before generators, and change nothing themselves."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from program import Training, tracking
from torch import nn

from pyengine import errors
from pyengine.catalog import markers
from pyengine.engine import sanity

Saved = tuple[Path, dict[str, str]]


def generators(training: Training) -> list[str]:
    """Return every generator's state."""
    return [
        hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest(),
        str(random.getstate()),
        str(np.random.get_state(legacy=False)),
        str(training.rng.bit_generator.state),
        str(training.ring.header_record()["sampler"]),
    ]


def test_the_check_sees_everything_but_generators_restored(saved: Saved) -> None:
    run_dir, digest = saved
    seen: dict[str, Any] = {}
    with tracking(run_dir) as (engine, training):
        before = generators(training)

        def check() -> None:
            assert generators(training) == before
            seen.update(training.digest())

        report = engine.restore(sanity=check)
        assert training.digest() == digest
        assert report.component("replay").found == "restored"
    del seen["generators"]
    assert seen == {name: value for name, value in digest.items() if name != "generators"}


def test_what_the_check_draws_changes_no_generator(saved: Saved) -> None:
    run_dir, digest = saved
    with tracking(run_dir) as (engine, training):

        def check() -> None:
            torch.randn(5)
            random.random()
            np.random.rand()
            training.rng.random()
            training.ring.sample(8)

        engine.restore(sanity=check)
        assert training.digest() == digest


@pytest.mark.parametrize(
    "result", [False, np.bool_(False), torch.tensor(False), ZeroDivisionError("the returns")]
)
def test_a_check_that_fails_poisons_the_engine_until_a_restore_succeeds(
    saved: Saved, result: Any
) -> None:
    run_dir, digest = saved
    with tracking(run_dir) as (engine, training):

        def check() -> Any:
            if isinstance(result, Exception):
                raise result
            return result

        with pytest.raises(errors.SanityCheckError) as caught:
            engine.restore(sanity=check)
        if isinstance(result, Exception):
            assert caught.value.__cause__ is result
            assert "the returns" in str(caught.value)
        with pytest.raises(errors.PoisonedEngineError):
            engine.tick(20)
        with pytest.raises(errors.PoisonedEngineError):
            engine.record_evaluation(20, mean_return=1.0)
        assert markers.restore_deaths(str(run_dir)) == {}
        assert markers.restored_snapshots(str(run_dir)) == set()
        assert engine.restore().global_step == 19
        assert training.digest() == digest
        engine.tick(20)


@pytest.mark.parametrize("result", [None, True, 0, 0.0, "fine", torch.tensor(0.0)])
def test_anything_but_false_is_fine(saved: Saved, result: Any) -> None:
    with tracking(saved[0]) as (engine, _training):
        assert engine.restore(sanity=lambda: result)


def test_a_check_is_a_function(saved: Saved) -> None:
    with (
        tracking(saved[0]) as (engine, _training),
        pytest.raises(errors.ConfigError, match="sanity"),
    ):
        engine.restore(sanity=True)  # type: ignore[arg-type]


def test_parameters_that_are_not_finite_fail_a_check_and_are_a_note_without_one(
    tmp_path: Path,
) -> None:
    run_dir = tmp_path / "run"
    with tracking(run_dir) as (engine, training):
        engine.restore()
        with torch.no_grad():
            training.net[0].weight[0, 0] = float("nan")
        engine.snapshot(0).wait(60)
    with tracking(run_dir) as (engine, _training):
        with pytest.raises(errors.SanityCheckError, match=r"policy.*0\.weight"):
            engine.restore(sanity=lambda: None)
        assert any("not finite" in note for note in engine.restore().notes)


class Noisy(nn.Module):
    """A module that changes itself and draws from every generator in a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.line = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 2))
        self.calls = 0
        self.seen: list[float] = []
        self.own = np.random.default_rng(0)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls += 1
        self.seen.append(random.random() + np.random.rand() + self.own.random())
        x.add_(1.0)
        return {"out": self.line(self.drop(self.norm(x)))}


def state_of(module: Noisy, optimizer: torch.optim.Optimizer) -> list[Any]:
    """Return all that a check might change: live values, gradients, generators."""
    tensors = [t.detach().numpy().tobytes() for t in module.state_dict().values()]
    grads = [None if p.grad is None else p.grad.numpy().tobytes() for p in module.parameters()]
    moments = [
        (name, value.numpy().tobytes() if torch.is_tensor(value) else value)
        for state in optimizer.state.values()
        for name, value in sorted(state.items())
    ]
    return [
        *(tensors, grads, moments, str(optimizer.param_groups)),
        *(module.calls, list(module.seen), str(module.own.bit_generator.state), module.training),
        *(torch.get_rng_state().numpy().tobytes(), random.getstate()),
        str(np.random.get_state(legacy=False)),
    ]


def trained() -> tuple[Noisy, torch.optim.Optimizer, Any]:
    """Return a module, its optimizer with moments, and a scheduler that wraps its `step`."""
    torch.manual_seed(3)
    module = Noisy()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for _ in range(2):
        module(torch.randn(8, 4))["out"].square().mean().backward()
        optimizer.step()
    scheduler.step()
    return module, optimizer, scheduler


@pytest.mark.parametrize("kind", ["forward", "update"])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_ready_made_checks_change_no_live_state_and_no_generator(kind: str, mode: str) -> None:
    module, optimizer, _scheduler = trained()
    module.train(mode == "train")
    optimizer.register_step_post_hook(lambda *_: pytest.fail("a hook of the live optimizer ran"))
    batch = torch.ones(8, 4)
    calls = []

    def loss(net: Any) -> torch.Tensor:
        calls.append(net)
        value: torch.Tensor = net(batch.clone())["out"].square().mean()
        return value

    check = (
        sanity.forward_pass(module, batch)
        if kind == "forward"
        else sanity.trial_update(module, optimizer, loss)
    )
    before = state_of(module, optimizer)
    for _ in range(2):
        check()
    assert state_of(module, optimizer) == before
    assert torch.equal(batch, torch.ones(8, 4))
    assert module not in calls
    assert len(calls) == (0 if kind == "forward" else 2)


def test_a_check_that_fails_puts_generators_back_as_well() -> None:
    module, optimizer, _scheduler = trained()

    def loss(net: Any) -> torch.Tensor:
        torch.randn(3)
        random.random()
        np.random.rand()
        raise KeyError("batch")

    before = state_of(module, optimizer)
    with pytest.raises(KeyError):
        sanity.trial_update(module, optimizer, loss)()
    assert state_of(module, optimizer) == before


def test_a_forward_pass_that_gives_nan_names_the_place() -> None:
    net = nn.Linear(2, 2)
    with pytest.raises(errors.SanityCheckError, match="output"):
        sanity.forward_pass(net, torch.full((1, 2), float("inf")))()
    sanity.forward_pass(net, lambda: torch.zeros(1, 2))()


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (lambda net: net(torch.ones(1, 2)).sum() / 0.0, "the loss of a trial update is"),
        (lambda net: net(torch.ones(1, 2)), "one number"),
        (lambda net: 1.0, "one number"),
        (lambda net: net.weight.sum().clamp(0, 0).sqrt() + net.bias.sum(), "gradients"),
    ],
)
def test_a_trial_update_that_goes_wrong_says_how(loss: Any, told: str) -> None:
    net = nn.Linear(2, 2)
    nn.init.zeros_(net.weight)
    with pytest.raises(errors.SanityCheckError, match=told):
        sanity.trial_update(net, torch.optim.SGD(net.parameters(), lr=0.1), loss)()


def test_a_step_that_blows_up_is_found() -> None:
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e38)
    with pytest.raises(errors.SanityCheckError, match="parameters after a step"):
        sanity.trial_update(net, optimizer, lambda twin: 1e4 * twin(torch.ones(1, 2)).sum())()


def test_ready_made_checks_work_in_a_restore(saved: Saved) -> None:
    run_dir, digest = saved
    with tracking(run_dir) as (engine, training):
        rows = training.ring

        def observations() -> torch.Tensor:
            return torch.from_numpy(rows[rows.refs()[:16]]["obs"])

        engine.restore(sanity=sanity.forward_pass(training.net, observations))
        assert training.digest() == digest
        engine.restore(
            sanity=sanity.trial_update(
                training.net,
                training.optimizer,
                lambda net: (net(observations()) - torch.randn(16, 2)).square().mean(),
            )
        )
        assert training.digest() == digest
