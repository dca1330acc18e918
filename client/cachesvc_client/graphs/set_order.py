"""Gives PyTorch the sets that a tensor subclass says of itself in one order.

A key has the pickled metadata of ``__tensor_flatten__``. A pickled set is in the order of its hashes, which
differ between processes (``PYTHONHASHSEED``), so a service did not find what the builder traced [measured,
2.13: half of the start of a small model]. 2.15 orders the sets in plain containers, and none inside of an
object. Metadata without a set stay as they are, and so does the key.
"""

from __future__ import annotations

import io
import pickle
from itertools import chain
from typing import Any

from ..hooks import imports

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_ORDERED = "cachesvc: sets in order"
"""Marks pickled metadata among those that PyTorch pickles."""


def hash_subclass(call: imports.Call) -> Any:
    """Run PyTorch's hash of a tensor subclass on the subclass's metadata in order."""
    pickler, tensor = call.args
    names, metadata = tensor.__tensor_flatten__()
    ordered = in_order(metadata)
    if ordered is not metadata:
        call.args = (pickler, _Described(tensor, names, ordered))
    return call()


class _Described:
    """Stands for a tensor, with other metadata."""

    def __init__(self, tensor: Any, names: list[str], metadata: Any) -> None:
        self._tensor, self._flattened = tensor, (names, metadata)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tensor, name)

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return self._flattened


def in_order(value: Any) -> Any:
    """Return metadata with each part that has a set as bytes that are alike in every process.

    Return the value itself if it has no set. What cannot be pickled stays: PyTorch says of it what it says.
    """
    kind = type(value)
    if kind in _PLAIN or kind.__module__ == "torch":
        return value
    if kind in (tuple, list):
        parts = [in_order(one) for one in value]
        changed = any(new is not old for new, old in zip(parts, value, strict=True))
        return kind(parts) if changed else value
    if kind is dict:
        parts = [in_order(one) for pair in value.items() for one in pair]
        changed = any(new is not old for new, old in zip(parts, chain(*value.items()), strict=True))
        return dict(zip(parts[::2], parts[1::2], strict=True)) if changed else value
    try:
        pickler = _SortedSets()
        data = pickler.bytes_of(value)
    except Exception:  # noqa: BLE001 - whatever a class raises when it is pickled
        return value
    return (_ORDERED, data) if pickler.found else value


class _SortedSets(pickle._Pickler):  # the one in C asks no one about sets
    """Pickles sets by their sorted elements. ``found``: whether there was one."""

    def __init__(self) -> None:
        self._stream = io.BytesIO()
        super().__init__(self._stream, protocol=4)
        self.found = False

    def bytes_of(self, value: Any) -> bytes:
        self.dump(value)
        return self._stream.getvalue()

    def reducer_override(self, value: Any) -> Any:
        """Reduce a set to its class, its elements in order, and what a subclass of ``set`` holds besides."""
        if not isinstance(value, (set, frozenset)):
            return NotImplemented
        self.found = True
        elements = sorted(_SortedSets().bytes_of(one) for one in value)
        return _set_of, (type(value), elements, getattr(value, "__dict__", {}))


def _set_of(*_: Any) -> None:
    """Stands in pickles that nothing ever loads."""
