"""A TorchRL collector as part of a run: its counters, where its rollout stands, its environment.

    iteration: the collector yields -> the learner extends, samples, learns -> the run ticks

In a tick the collector's generator rests behind its `yield`. What it goes on with is in the
collector: frames, the data of the last step (`_carrier`), numbers of trajectories.
"""

from __future__ import annotations

from typing import Any

from torchrl.collectors import Collector

from pyengine.capture.protocol import type_text
from pyengine.errors import CaptureError, ConfigError, StateMismatchError
from pyengine.integrations.torchrl.environments import EnvironmentParts
from pyengine.integrations.torchrl.tensordicts import from_plain, to_plain


class CollectorState:
    """Gives and takes what a collector carries; ConfigError for one that cannot be saved."""

    def __init__(self, collector: Any) -> None:
        _check_kind(collector)
        self._collector = collector

    @property
    def frames(self) -> int:
        """Frames collected so far."""
        return int(self._collector._frames)

    def get_state(self) -> dict[str, Any]:
        """Return the state, tensors as they live; CaptureError while it collects in a thread."""
        collector = self._collector
        if collector.is_running():
            raise CaptureError(
                "'collector': it collects in a thread of its own (start()), so that nothing is at "
                "rest; iterate over it instead",
                component="collector",
            )
        tracker = collector.policy_version_tracker
        return {
            "frames": self.frames,
            "iterations": int(collector._iter),
            "trajectories": collector._traj_pool.state_dict()["traj_id"],
            "policy_version": None if tracker is None else collector.policy_version,
            "carrier": to_plain(collector._carrier),
        }

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise StateMismatchError for a state of another number of environments."""
        here, got = list(self._collector._carrier.batch_size), state["carrier"]["batch_size"]
        if here != got:
            raise StateMismatchError(
                f"the collector's environments have batch size {here}, the snapshot's {got}; "
                "collect from as many as the run did, or begin another run",
                component="collector", expected=here, got=got,
            )  # fmt: skip

    def set_state(self, state: dict[str, Any]) -> None:
        """Take it back."""
        collector = self._collector
        collector._frames = state["frames"]
        collector._iter = state["iterations"]
        collector._traj_pool.load_state_dict({"traj_id": state["trajectories"]})
        if state["policy_version"] is not None and collector.policy_version_tracker is not None:
            collector.policy_version_tracker.version = state["policy_version"]
        names = collector._carrier.names if collector._carrier._has_names() else None
        collector._carrier = from_plain(state["carrier"])
        if names is not None:
            collector._carrier.names = names

    def reset(self, seed: int) -> None:
        """Begin episodes anew, environments seeded from `seed`; trajectories get new numbers."""
        self._collector.set_seed(seed)
        self._collector.reset()


class CollectorEnvironment:
    """The collector's environment: put back in mid-episode, or said to be reset, and why.

    `reset_reason` is what stood in the way, empty where episodes go on.
    """

    def __init__(self, collector: Any) -> None:
        self._collector = collector
        self.parts = EnvironmentParts(collector.env)
        self.reset_reason = ""
        self._transforms: dict[str, Any] | None = None

    @property
    def obstacles(self) -> tuple[str, ...]:
        """Why environments cannot be saved; else empty."""
        return tuple(self.parts.obstacles)

    def get_state(self) -> dict[str, Any]:
        """Return the state of environments and transforms, or why there is none."""
        if self._collector._frames >= self._collector.total_frames:
            return {"reset": "the collector had all its frames and closed them"}
        if self.obstacles:
            return {"reset": "; ".join(self.obstacles[:3]), "transforms": self._statistics()}
        try:
            simulators = self.parts.simulators()
        except CaptureError as error:
            return {"reset": str(error), "transforms": self._statistics()}
        return {"simulators": simulators, "transforms": self.parts.transforms()}

    def _statistics(self) -> dict[str, Any]:
        try:
            return self.parts.transforms()
        except CaptureError:
            return {}

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise StateMismatchError where the state is of other environments."""
        if "simulators" in state:
            self.parts.check(state)

    def set_state(self, state: dict[str, Any]) -> None:
        """Take it back."""
        self.reset_reason = state.get("reset", "")
        self._transforms = state.get("transforms")
        if "simulators" in state:
            self.parts.set_simulators(state["simulators"])
            self.parts.set_transforms(state["transforms"], only_statistics=False)

    def put_statistics_back(self) -> None:
        """After a reset: what it showed is not counted a second time."""
        if self._transforms:
            self.parts.set_transforms(self._transforms, only_statistics=True)


def _check_kind(collector: Any) -> None:
    if type(collector) is not Collector:
        raise ConfigError(
            f"collector: {type_text(collector)} collects elsewhere, where its state is out of "
            "reach; a run goes on exactly with one torchrl.collectors.Collector in this process. "
            "Without `collector=` the rest of the run is saved, and collection begins anew",
            field="collector",
            expected="torchrl.collectors.Collector",
            got=type_text(collector),
        )
    if collector.trajs_per_batch is not None:
        raise ConfigError(
            "collector: with trajs_per_batch it holds half-finished trajectories in its iterator, "
            "where they are out of reach; use frames_per_batch alone",
            field="trajs_per_batch",
            expected=None,
            got=collector.trajs_per_batch,
        )
