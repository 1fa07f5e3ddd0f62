"""The node of a tensor in the tagged tree: what a new one needs besides its values."""

from __future__ import annotations

import torch

from pyengine.capture.dtypes import torch_storage
from pyengine.capture.protocol import type_name
from pyengine.capture.tree import Node
from pyengine.errors import CaptureError

# torch has Buffer from 2.5 on.
_LEAF_TENSORS = (torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor))


def tensor_node(component: str, value: torch.Tensor, path: str) -> dict[str, Node]:
    """Return the node of a tensor, still without its entry; CaptureError where it has no bytes."""
    what = None
    if torch.nn.parameter.is_lazy(value):
        what = "it has no shape yet: run one forward pass first"
    elif type(value) not in _LEAF_TENSORS and not _is_mere_parameter(value):
        what = f"a tensor of type {type_name(value)} cannot be saved"
    elif value.layout is not torch.strided:
        what = f"a tensor of layout {value.layout} cannot be saved"
    elif value.device.type == "meta":
        what = "a tensor on the meta device has no data"
    else:
        try:
            torch_storage(value.dtype)
        except ValueError as error:
            what = str(error)
    if what is not None:
        place = f" at {path}" if path else ""
        raise CaptureError(f"{component!r}{place}: {what}", component=component)
    node: dict[str, Node] = {"$": "tensor"}
    if value.device.type != "cpu":
        node["device"] = str(value.device)
    if value.requires_grad and value.is_leaf:
        node["grad"] = True
    if isinstance(value, torch.nn.Parameter):
        node["parameter"] = True
    if not value.is_contiguous() and _is_dense(value):
        node["stride"] = list(value.stride())
    return node


def _is_mere_parameter(value: torch.Tensor) -> bool:
    """Return whether a subclass of Parameter holds its data as any other does."""
    plain = type(value).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    return plain and isinstance(value, torch.nn.Parameter)


def _is_dense(value: torch.Tensor) -> bool:
    """Return whether the elements fill one run of memory, in whatever order of axes."""
    expected = 1
    for stride, size in sorted(zip(value.stride(), value.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
