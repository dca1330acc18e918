"""Keeps of one call what a comparison with eager needs later, while the service goes on.

The service may write into its tensors at any time, so what the comparison reads is copied. Parameters are
not: they are large, and rarely written. PyTorch counts the writes into a tensor that it sees, and a mark of
64 values tells most others, so a parameter that was written in between is noticed.

The module imports torch, so only the thread that compiles may import it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from .comparisons import MOST_KEPT, Room
from .operators import NotComparable, storage_of, tensors_in

_MARKED = 64
"""Values of a tensor that a mark holds, at most."""
DEVICES = frozenset({"cpu", "cuda"})
"""The types of devices whose tensors are compared."""


class CallModes(NamedTuple):
    """The modes of the thread that makes a call: whether it wants gradients, and infers; for each device with
    autocast its dtype; and the CUDA device, if the call uses one."""

    grad: bool
    inference: bool
    autocast: Mapping[str, Any]
    device: int | None


class _Mark(NamedTuple):
    """What tells whether a tensor was written: how often PyTorch counted a write, and some of its values."""

    tensor: Any
    version: int
    values: Any

    @property
    def holds(self) -> bool:
        """Return whether the tensor is as it was, as far as that is known."""
        if self.tensor._version != self.version:
            return False
        return bool(torch.equal(self.values, _values(self.tensor.detach())))


class KeptCall:
    """Holds the inputs of a call, and after it the outputs and what was written into inputs.

    ``args``: copies and, at the places ``referenced``, tensors of the service. ``shared``: places of copies
    of which another argument shares the memory. ``outputs``: copies. ``after``: copies of inputs that the
    call may have written, by their places. ``events``: the CUDA events after which these are there, by
    device.
    """

    def __init__(self, args: Sequence[Any], room: Room) -> None:
        """Keep the inputs, before the call. Raise ``NotComparable`` where that cannot be compared."""
        self.args: list[Any] = [_plain(item) for item in args]
        self._room, self._bytes = room, 0
        self._marks: dict[int, _Mark] = {}
        self._versions: dict[int, int] = {}
        """For copies: how often PyTorch had counted a write into the original, where it counts."""
        self.after: dict[int, Any] = {}
        self.outputs: list[Any] = []
        self.events: dict[int, Any] = {}
        tensors = {place: item for place, item in enumerate(args) if isinstance(item, torch.Tensor)}
        if torch.is_grad_enabled() and any(item.requires_grad for item in tensors.values()):
            raise NotComparable("gradients are wanted, and only inference is compared (see torch.no_grad)")
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            raise NotComparable("a CUDA graph is being captured")
        self.modes = _modes(tensors.values())
        sharing = Counter(storage_of(item) for item in tensors.values())
        self.shared = {place for place, item in tensors.items() if sharing[storage_of(item)] > 1}
        try:
            # The large ones last: where no room is left, they are kept as parameters are.
            for place in sorted(tensors, key=lambda place: tensors[place].nbytes):
                self._keep(place, tensors[place])
        except BaseException:
            self.release()
            raise

    @property
    def referenced(self) -> set[int]:
        """Return the places of the tensors that are the service's."""
        return set(self._marks)

    def _keep(self, place: int, tensor: Any) -> None:
        counted = not tensor.is_inference()
        if not (counted and isinstance(tensor, torch.nn.Parameter)) and self._has_room(tensor):
            self.args[place] = tensor.detach().clone()
            if counted:
                self._versions[place] = tensor._version
        elif counted:
            self.args[place] = tensor.detach()
            self._marks[place] = _Mark(tensor, tensor._version, _values(self.args[place]))
        else:
            raise NotComparable("an input is too large to be copied, and PyTorch counts no writes into it")

    def note_output(self, args: Sequence[Any], output: Any) -> None:
        """Keep what came out of the call. Raise ``NotComparable`` where that cannot be compared."""
        if any(mark.tensor._version != mark.version for mark in self._marks.values()):
            raise NotComparable("the graph writes into a parameter, or into an input too large to be copied")
        for place, tensor in enumerate(args):
            copied = isinstance(tensor, torch.Tensor) and place not in self._marks
            if copied and (place not in self._versions or tensor._version != self._versions[place]):
                self.after[place] = self._copy(tensor)
        self.outputs = [self._copy(_plain(item)) for item in tensors_in(output)]
        for device in {item.device.index for item in (*self.args, *self.outputs) if _is_cuda(item)}:
            self.events[device] = torch.cuda.current_stream(device).record_event()

    def release(self) -> None:
        """Drop everything, and free the room for it."""
        self.args, self.outputs, self.after, self._marks = [], [], {}, {}
        self._room.give_back(self._bytes)
        self._bytes = 0

    def is_unchanged(self) -> bool:
        """Return whether the tensors of the service are what they were at the call."""
        return all(mark.holds for mark in self._marks.values())

    def _copy(self, tensor: Any) -> Any:
        if not self._has_room(tensor):
            raise NotComparable(f"more than {MOST_KEPT >> 20} MiB would have to be kept for it")
        return tensor.detach().clone()

    def _has_room(self, tensor: Any) -> bool:
        if not self._room.take(tensor.nbytes):
            return False
        self._bytes += tensor.nbytes
        return True


def _plain(item: Any) -> Any:
    """Return a value that a comparison can use. Raise ``NotComparable`` for another one."""
    if isinstance(item, torch.Tensor):
        if type(item) not in (torch.Tensor, torch.nn.Parameter):
            raise NotComparable(f"a tensor is of the subclass {type(item).__name__}")
        if item.device.type not in DEVICES or item.layout is not torch.strided or item.is_quantized:
            raise NotComparable(f"a tensor is on {item.device.type}, {item.layout}")
    elif not isinstance(item, (int, float, complex, bool, type(None), str)):
        raise NotComparable(f"an input is of the type {type(item).__name__}")
    return item


def _modes(tensors: Any) -> CallModes:
    devices = {item.device.type for item in tensors}
    autocast = {
        device: torch.get_autocast_dtype(device)
        for device in devices | {"cpu"}
        if torch.is_autocast_enabled(device)
    }
    device = torch.cuda.current_device() if "cuda" in devices else None
    return CallModes(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast, device)


def _values(tensor: Any) -> Any:
    """Return some of a tensor's values as bytes, from its whole memory."""
    if not tensor.numel():
        return torch.empty(0)
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    step = max(1, span // _MARKED)
    places = min(_MARKED, (span - 1) // step + 1)
    return tensor.as_strided((places,), (step,), tensor.storage_offset()).clone().view(torch.uint8)


def _is_cuda(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and item.is_cuda
