"""Imitates a GPU on the CPU: tracks the tensors that would be on it, and counts how often the host waits for it.

All tensors stay on the CPU and are tracked by their storage. Tensors that the code sends to the device or creates
there (`device=`) count as being on the device, and so do all results computed from them. Dropout is torch's, as on
GPUs, because our dropout for CPUs draws on the host.

Each wait is attributed to our code or to DeepSpeed, whichever is innermost on the stack. Waits inside models, torch's
optimizers and the backward pass count as ours.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import adapt
from adapt.model.packing import attention, packed

COUNTING = "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive"
"""Functions whose output size is only known on the device, so that the host waits for it."""
READING = {Tensor.tolist, Tensor.cpu, Tensor.numpy}
"""Methods that read values from the device. Torch does not dispatch these methods for tensors on a CPU."""
MAKING = {torch.tensor, torch.as_tensor}
"""Functions that copy data from the host to the device and wait for the copy."""
OURS = str(Path(adapt.__file__).parent), "/transformers/", "/torch/optim/", "/torch/autograd/graph.py"
"""Parts of file paths. Waits in these files are attributed to our code."""


class Told(NamedTuple):
    """Copies of the three lists of events that `Pretended` has recorded."""

    waits: list[str]
    met: list[str]
    others: list[str]


class Pretended:
    """Records events on the imitated device."""

    def __init__(self, there: Iterable[Tensor]) -> None:
        self.waits: list[str] = []
        """Waits of the host for the device in our code."""
        self.met: list[str] = []
        """Calls in our code that mix tensors of both devices. A real device would refuse them, or copy and wait."""
        self.others: list[str] = []
        """Waits and mixed calls in DeepSpeed's code."""
        self._storages: dict[int, Any] = {}
        for tensor in there:
            self.put(tensor)

    def put(self, tensor: Tensor) -> None:
        """Marks a tensor, and all tensors that share its memory, as being on the device."""
        storage = tensor.untyped_storage()
        self._storages[storage._cdata] = storage  # kept alive, so that no other storage gets the same address

    def has(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._storages

    def sent(self, values: Tensor, device: torch.device) -> Tensor:
        """Imitates a copy to the device, in place of `adapt.model.packing.packed.sent`."""
        arrived = values if self.has(values) else values.clone()
        self.put(arrived)
        return arrived

    def note(self, function: Any, arguments: Any) -> bool:
        """Records events of a torch function before it is called. Returns whether its results are on the device."""
        tensors = [each for each in tree_leaves(arguments) if isinstance(each, Tensor)]
        if not any(map(self.has, tensors)):
            return False
        name = str(function)
        if any(not self.has(each) and each.dim() for each in tensors):
            self.tell(self.met, name)
        if _waits(function, arguments):
            self.tell(self.waits, name)
        return True

    def tell(self, ours: list[str], name: str) -> None:
        """Adds an event to the list `ours`, or to DeepSpeed's list if the event happens in DeepSpeed's code."""
        (ours if _is_ours() else self.others).append(name)

    def told(self) -> "Told":
        """Returns a copy of all three lists of events."""
        return Told(list(self.waits), list(self.met), list(self.others))

    def forget(self) -> None:
        """Empties the three lists of events."""
        for happened in (self.waits, self.met, self.others):
            happened.clear()


def _is_ours() -> bool:
    frame: FrameType | None = sys._getframe()
    while frame:
        file = frame.f_code.co_filename
        if "/deepspeed/" in file or any(part in file for part in OURS):
            return "/deepspeed/" not in file
        frame = frame.f_back
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
        device, goes = self.pretended, self._goes_there(function, args, kwargs or {})
        reads = function in READING and device.has(args[0])
        copies = goes and (function in MAKING or (function is Tensor.to and not device.has(args[0])))
        if reads or copies or (function is Tensor.new_tensor and device.has(args[0])):
            device.tell(device.waits, function.__name__)
        result = function(*args, **(kwargs or {}))
        if goes and isinstance(result, Tensor):
            if copies:
                result = result.clone()
            device.put(result)
        return result

    def _goes_there(self, function: Any, args: Any, kwargs: Any) -> bool:
        """Returns whether the result is on the device, because an argument is the device or a tensor on it."""
        named = [kwargs.get("device"), *(args[1:2] if function is Tensor.to else ())]
        return any(
            isinstance(each, torch.device | str) or (isinstance(each, Tensor) and self.pretended.has(each))
            for each in named
        )


@contextmanager
def pretended(there: Iterable[Tensor]) -> Iterator[Pretended]:
    """Imitates a GPU inside the block. The tensors `there` count as being on the GPU from the start."""
    device, sent = Pretended(there), packed.sent
    patches = [patch.object(attention, "quick_dropout", functional.dropout)]
    patches += [
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
        for each in reversed(patches):
            each.stop()
