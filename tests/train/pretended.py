"""A GPU that is not there: what would be on it is known by its storage, and what would wait for it is counted.

All tensors stay on the CPU. What the code sends to the device, or makes there by name (`device=`), is there, and so is
whatever is computed from it.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from adapt.model import packed

COUNTING = "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive"
"""The size of what comes out is known on the device alone."""
READING = {Tensor.tolist, Tensor.cpu, Tensor.numpy}
"""What torch does not dispatch on a CPU."""


class Pretended:
    """What happened to the device that is not there."""

    def __init__(self, there: Iterable[Tensor]) -> None:
        self.waits: list[str] = []
        """What made the host wait for the device."""
        self.met: list[str] = []
        """What got tensors of both, which a real device would refuse, or copy and wait."""
        self._storages: dict[int, Any] = {}
        for tensor in there:
            self.put(tensor)

    def put(self, tensor: Tensor) -> None:
        """From now on a tensor, and whatever shares its memory, is there."""
        storage = tensor.untyped_storage()
        self._storages[storage._cdata] = storage  # held, so that no other gets its number

    def has(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._storages

    def sent(self, values: Tensor, device: torch.device) -> Tensor:
        """In place of `adapt.model.packed.sent`."""
        arrived = values if self.has(values) else values.clone()
        self.put(arrived)
        return arrived

    def note(self, function: Any, arguments: Any) -> bool:
        """Sees a function of torch before it is called. Returns whether its results are there."""
        tensors = [each for each in tree_leaves(arguments) if isinstance(each, Tensor)]
        if not any(map(self.has, tensors)):
            return False
        name = str(function)
        if any(not self.has(each) and each.dim() for each in tensors):
            self.met.append(name)
        if _waits(function, arguments):
            self.waits.append(name)
        return True


def _waits(function: Any, arguments: Any) -> bool:
    name = function.name().split(".")[0]
    if name in ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"):
        return any(each is not None and each.dtype in (torch.bool, torch.uint8) for each in arguments[0][1])
    sizeless = name == "aten::repeat_interleave" and arguments[1].get("output_size") is None
    return name in (*COUNTING, "aten::_local_scalar_dense", "aten::equal") or sizeless


class _Dispatched(TorchDispatchMode):
    def __init__(self, pretended: Pretended) -> None:
        super().__init__()
        self.pretended = pretended

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        there = self.pretended.note(function, (args, kwargs or {}))
        result = function(*args, **(kwargs or {}))
        if there:
            for each in tree_leaves(result):
                if isinstance(each, Tensor):
                    self.pretended.put(each)
        return result


class _Called(TorchFunctionMode):
    def __init__(self, pretended: Pretended) -> None:
        super().__init__()
        self.pretended = pretended

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in READING and self.pretended.has(args[0]):
            self.pretended.waits.append(function.__name__)
        result = function(*args, **(kwargs or {}))
        if (kwargs or {}).get("device") is not None and isinstance(result, Tensor):
            self.pretended.put(result)
        return result


@contextmanager
def pretended(there: Iterable[Tensor]) -> Iterator[Pretended]:
    """Inside the block there is such a device, with some tensors on it."""
    device, sent = Pretended(there), packed.sent
    patches = [
        patch.object(module, "sent", device.sent)
        for name, module in list(sys.modules.items())
        if name.startswith("adapt.") and getattr(module, "sent", None) is sent
    ]
    for each in patches:
        each.start()
    try:
        with _Called(device), _Dispatched(device):
            yield device
    finally:
        for each in patches:
            each.stop()
