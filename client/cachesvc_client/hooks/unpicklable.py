"""Finds what PyTorch could not pickle when it made a key of a graph, of which its message says nothing."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from . import imports

MESSAGE = "Failed to pickle cache key"
"""PyTorch's message."""
NOT_SAVED = "its trace cannot be saved"
"""Beginning of the reason for a trace that has a key, and is not pickled itself."""
_FLATTENS = "_default_stable_hash_for_caching"
"""PyTorch's function that pickles what a tensor subclass says of itself; its parameter is ``tensor``."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_last = threading.local()
"""``text``: what the last key on this thread could not be made of."""


def note(call: imports.Call, error: Exception) -> None:
    """Note the object that a call of ``FxGraphCachePickler.dumps`` could not pickle."""
    _last.text = _in_words(call, error.__cause__ or error)


def not_saved(entry: Any) -> str:
    """Return the reason why PyTorch could not pickle a trace."""
    import pickle

    try:
        pickle.dumps(entry)
    except Exception as error:  # noqa: BLE001 - whatever a class raises when it is pickled
        return f"{NOT_SAVED}: {_said(error)}"
    return NOT_SAVED


def with_cause(message: str) -> str:
    """Return PyTorch's message with cause and object, if they are known."""
    text, _last.text = getattr(_last, "text", ""), ""
    return f"{message}: {text}" if text and message == MESSAGE else message


def _in_words(call: imports.Call, cause: BaseException) -> str:
    holder = _subclass(cause.__traceback__) or _attribute(*call.args)
    return f"{holder}: {_said(cause)}" if holder else _said(cause)


def _said(error: BaseException) -> str:
    return _ADDRESS.sub("", f"{type(error).__name__}: {error}")


def _subclass(trace: TracebackType | None) -> str:
    """Return the part of a tensor subclass's metadata that was pickled in a traceback; else an empty text."""
    holder = ""
    for frame in _frames(trace):
        if frame.f_code.co_name == _FLATTENS and "tensor" in frame.f_locals:
            tensor = frame.f_locals["tensor"]
            _, metadata = tensor.__tensor_flatten__()
            parts = metadata.items() if isinstance(metadata, dict) else [("", metadata)]
            names = [f" {name!r}" for name, value in parts if name != "" and not _pickles(value)]
            kind = f"{type(tensor).__module__}.{type(tensor).__qualname__}"
            holder = f"the metadata{names[0] if names else ''} of {kind}.__tensor_flatten__()"
    return holder


def _frames(trace: TracebackType | None) -> Iterator[Any]:
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def _attribute(pickler: Any, details: Any) -> str:
    """Return the part of a key's details that a pickler fails at; else an empty text."""
    for name, value in getattr(details, "__dict__", {}).items():
        try:
            pickler.dump(value)
        except Exception:  # noqa: BLE001 - whatever a class raises when it is pickled
            return f"{name} of the graph"
        finally:
            pickler._stream.seek(0)
            pickler._stream.truncate(0)
    return ""


def _pickles(value: Any) -> bool:
    import pickle

    try:
        pickle.dumps(value)
    except Exception:  # noqa: BLE001 - whatever a class raises when it is pickled
        return False
    return True
