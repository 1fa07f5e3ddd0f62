"""A whole snapshot is decoded with FORMAT.md, struct, NumPy, json, msgpack and safetensors."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import page_decoder
import page_values
import pytest
import torch
from every_kind import OwnSgd, Teacher, Tied, everything, expected_tree, generator_state
from program import LANES, Training

import pyengine
from pyengine.capture import decode


def assert_same(got: Any, wanted: Any, place: str = "") -> None:
    """Compare values and types in depth, arrays byte by byte; cycles are left to the caller."""
    if isinstance(wanted, torch.Tensor):
        wanted = wanted.detach()
        wanted = (wanted.view(torch.uint16) if wanted.dtype == torch.bfloat16 else wanted).numpy()
    if isinstance(wanted, np.ndarray) and wanted.dtype != object:
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), place
        assert got.tobytes() == wanted.tobytes(), place
    elif isinstance(wanted, np.ndarray):
        assert_same(got.tolist(), wanted.tolist(), place)
    elif isinstance(wanted, dict):
        assert type(got) is type(wanted) or type(wanted) is dict, place
        assert list(got) == list(wanted), place
        for key in wanted:
            assert_same(got[key], wanted[key], f"{place}/{key}")
    elif isinstance(wanted, (list, tuple)):
        assert len(got) == len(wanted), place
        for index, (one, other) in enumerate(zip(got, wanted, strict=True)):
            assert_same(one, other, f"{place}/{index}")
    else:
        assert got == wanted, place
        assert isinstance(wanted, (str, tuple)) or type(got) is type(wanted), place


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A snapshot of everything that can be tracked, the live objects, and what the page says."""
    training, tied, tree = Training(), Tied(), everything()
    own = OwnSgd(training.net.parameters(), lr=0.5, momentum=0.9)
    objects = {
        "tied": tied, "own": own, "counted": tree, "teacher": Teacher(),
        "scaler": torch.amp.GradScaler("cpu"), "vector": np.arange(3, dtype=np.float32),
        "environment": pyengine.EnvironmentState(get=everything, set=print),
        "pickled": pyengine.Pickled(get=lambda: [1, "a"], set=print),
    }  # fmt: skip
    path = tmp_path_factory.mktemp("page") / "run"
    with pyengine.SnapshotEngine(path, notes={"why": "page"}) as engine:
        training.track(engine)
        engine.track(**objects)
        engine.exclude("simulator", "no state")
        for step in range(45):
            training.step(step)
        own.step()
        process = torch.get_rng_state().numpy()
        snapshot = Path(engine.snapshot(44, {"loss": math.nan}).wait(60).path)
        manifest, values = page_decoder.decode_snapshot(
            lambda name: (snapshot / name).read_bytes(), (snapshot / "manifest.json").read_bytes()
        )
        rows = training.ring[training.ring.refs()]
        return {
            "training": training, "objects": objects, "snapshot": snapshot, "process": process,
            "manifest": manifest, "values": values, "refs": training.ring.refs(), "rows": rows,
        }  # fmt: skip


def test_manifest_and_components_are_all_there(run: dict[str, Any]) -> None:
    assert run["manifest"]["global_step"] == 44
    assert run["manifest"]["metrics"] == {"loss": "nan"}
    kinds = {record["kind"] for record in run["manifest"]["components"]}
    assert kinds >= {row[0].strip("`") for row in page_decoder.table_rows("Component files")[1:]}
    assert kinds >= {"ring", "excluded", "pickle"}


def test_rows_of_a_wrapped_ring_are_read_by_lane_and_row_id(run: dict[str, Any]) -> None:
    rows = run["values"]["replay"]["rows"]
    assert len(rows) == len(run["refs"])
    for index, ref in enumerate(run["refs"].tolist()):
        row = rows[ref % LANES, ref // LANES]
        assert row.keys() == {*run["rows"], "@start"}
        for name in run["rows"]:
            assert row[name].tobytes() == run["rows"][name][index].tobytes()


def test_modules_give_their_state_dicts(run: dict[str, Any]) -> None:
    for name, live in (("policy", run["training"].net), ("tied", run["objects"]["tied"])):
        got, state = run["values"][name], live.state_dict()
        assert got.keys() == state.keys()
        assert_same({key: got[key] for key in state}, dict(state))
    got = run["values"]["tied"]
    assert got["first.weight"] is got["second.weight"]


def test_optimizers_give_their_state_dicts(run: dict[str, Any]) -> None:
    for name, live in (("optimizer", run["training"].optimizer), ("own", run["objects"]["own"])):
        got, wanted = run["values"][name], live.state_dict()
        assert got.keys() == wanted.keys()
        assert_same(got["param_groups"], wanted["param_groups"])
        assert got["state"].keys() == wanted["state"].keys()
        for index, state in wanted["state"].items():
            assert_same({key: got["state"][index][key] for key in state}, state)


def test_every_kind_of_node_is_read(run: dict[str, Any]) -> None:
    wanted = expected_tree(run["objects"]["counted"])
    for name in ("counted", "environment"):
        got = dict(run["values"][name])
        cycle = got.pop("cycle")
        assert cycle["self"] is cycle
        assert got["shared"][0] is got["shared"][1] is got["dicts"][1][2] is got["objects"][0, 0]
        if name == "environment":
            continue  # its generators are others
        assert_same(got, {key: value for key, value in wanted.items() if key != "cycle"})


def test_other_objects_give_what_their_methods_gave(run: dict[str, Any]) -> None:
    values, training = run["values"], run["training"]
    assert_same(values["teacher"], Teacher().get_state())
    assert_same(values["scaler"], run["objects"]["scaler"].state_dict())
    assert_same(values["scheduler"], training.scheduler.state_dict())
    assert_same(values["counters"], training.counters)
    assert_same(values["vector"], run["objects"]["vector"])
    assert pickle.loads(values["pickled"]) == [1, "a"]
    assert_same(values["explorer"]["state"], generator_state(training.rng))
    assert_same(values["process_rng"]["torch"], run["process"])


def test_no_kind_of_node_is_left_out(run: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    met = set()
    for tag in decode._KINDS:
        name = f"_tag_{tag}"
        method = getattr(page_values.Tree, name)

        def note(self: Any, node: Any, path: str, tag: str = tag, method: Any = method) -> Any:
            met.add(tag)
            return method(self, node, path)

        monkeypatch.setattr(page_values.Tree, name, note)
    page_decoder.decode_snapshot(
        lambda name: (run["snapshot"] / name).read_bytes(),
        (run["snapshot"] / "manifest.json").read_bytes(),
    )
    assert met == set(decode._KINDS)


def test_the_decoder_runs_where_pyengine_and_torch_cannot_be_imported(run: dict[str, Any]) -> None:
    script = (
        "import sys, pathlib\n"
        "sys.modules['pyengine'] = sys.modules['torch'] = None\n"
        f"sys.path.insert(0, {str(Path(page_decoder.__file__).parent)!r})\n"
        "import page_decoder\n"
        f"snapshot = pathlib.Path({str(run['snapshot'])!r})\n"
        "read = lambda name: (snapshot / name).read_bytes()\n"
        "_, values = page_decoder.decode_snapshot(read, read('manifest.json'))\n"
        "print(sorted(values))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(sorted(run["values"]))
