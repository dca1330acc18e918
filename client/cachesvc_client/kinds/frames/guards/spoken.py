"""Says of a guard what a person reads: which object of the program, in which line, and what differs."""

from __future__ import annotations

import itertools
import os
import re
from typing import Any

_OF_MODULE = re.compile(r"\._(?:modules|parameters|buffers)\['([^'\\]+)'\]")
_OF_FRAME = re.compile(r"\b[LG]\['(\w+)'\]")
_DIGEST = re.compile(r"\b([0-9a-f]{8})[0-9a-f]{32,}\b")
_OF_TORCH = "/torch/"
"""A part of the paths of PyTorch's files."""
_PYTHONS = os.path.dirname(os.__file__)
"""The folder of Python's own library."""
_MOST = 80
"""Letters that a reason shows of each side."""


def object_name(guard: str) -> str:
    """Return the name of a guard's object as a program writes it, such as ``self.linear.bias``."""
    return _OF_FRAME.sub(r"\1", _OF_MODULE.sub(r".\1", guard))


def line_of(stack: Any) -> str:
    """Return the line of the program that a stack of Dynamo's (``traceback.StackSummary``) is about, as
    `` (file.py:7: code)``: the innermost one outside of PyTorch and of Python's own library. An empty text if
    none is known."""
    frames = [frame for frame in stack or () if not _is_of_libraries(frame.filename)]
    if not frames:
        return ""
    frame = frames[-1]
    text = " ".join((frame.line or "").split())[:_MOST]
    return f" ({os.path.basename(frame.filename)}:{frame.lineno}: {text})"


def _is_of_libraries(file: str) -> bool:
    own = os.path.dirname(file) in (_PYTHONS, os.path.join(_PYTHONS, "collections"))
    return own or _OF_TORCH in file.replace(os.sep, "/")


def difference(recorded: str, here: str) -> str:
    """Return what differs between the words of an object and its words when it was recorded: the part that is
    no longer equal, of words of several lines in the first such line. A digest is cut."""
    lines = zip(recorded.splitlines(), here.splitlines(), strict=False)
    recorded, here = next(((theirs, ours) for theirs, ours in lines if theirs != ours), (recorded, here))
    theirs, ours = recorded.split(), here.split()
    begin = _equal(theirs, ours)
    theirs, ours = theirs[begin:], ours[begin:]
    end = _equal(theirs[::-1], ours[::-1])
    return f"here {_shown(ours, end)}, recorded {_shown(theirs, end)}"


def _equal(one: list[str], other: list[str]) -> int:
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _shown(words: list[str], end: int) -> str:
    text = _DIGEST.sub(r"\1", " ".join(words[: len(words) - end]))
    return (text[:_MOST] + "…" if len(text) > _MOST else text).rstrip(",") or "nothing"
