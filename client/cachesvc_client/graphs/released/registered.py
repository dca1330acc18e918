"""Records the functions that a program registers for operators of PyTorch's own."""

from __future__ import annotations

import re
import sys
from typing import Any

from . import known, wrappers

_REGISTERED = re.compile(r"(?m)^(\w+)(?:\[alias\])?: registered at (.+\.py|/dev/null):\d+")
"""Matches a registration from Python in PyTorch's list of an operator's registrations."""


class RegisteredForCore:
    """Records the functions that a program registers for operators of PyTorch's own.

    ``noted``: ``namespace/operator/dispatch key`` -> function, which no one has judged yet; ``functions``:
    those that were judged and are of a program. ``earlier``: registrations of which only PyTorch knows, from
    before the hook was in place.
    """

    def __init__(self) -> None:
        self.noted: dict[str, Any] = {}
        self.functions: dict[str, Any] = {}
        self.earlier: set[str] = set()
        self._unknown: dict[str, str] | None = None

    def judge(self) -> None:
        """Judge what was noted. That takes long for the thousands that torch registers when it is imported,
        of which `take` knows that they are torch's own."""
        while self.noted:
            place, function = self.noted.popitem()
            self.functions.pop(place, None)
            if not all(known.is_known(one.__code__) for one in wrappers.functions_in(function)):
                self.functions[place] = function

    def unknown(self) -> str:
        """Return in words the first earlier registration that is not PyTorch's own; else an empty text."""
        if self._unknown is None:
            self._unknown = {one: _foreign_file(one) for one in sorted(self.earlier)}
        found = (one for one, file in self._unknown.items() if file and one in registrations())
        return next((f"{one} was registered before cachesvc was attached" for one in found), "")


core = RegisteredForCore()
"""What this process registered."""


def registrations() -> set[str]:
    return getattr(sys.modules.get("torch.library"), "_impls", set())


def _foreign_file(registration: str) -> str:
    """Return the file, out of torch's folder, in which an operator got a function of a program."""
    import torch

    namespace, name, key = registration.split("/")
    dump = torch._C._dispatch_dump(f"{namespace}::{name}")
    files = [file for one, file in _REGISTERED.findall(dump) if one == key]
    return next((file for file in files if not file.startswith((known.torch_folder(), "/dev/null"))), "")
