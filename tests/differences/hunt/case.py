"""Define a case: a program as a module of Python, and one fact that can be another one."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from typing import Any

HEADER = """\
import abc, collections, dataclasses, enum, functools, os, sys, types, typing, warnings, weakref
import torch
from torch import nn
from torch.nn import functional as F
from tests.differences.hunt import kit
from tests.differences.hunt.kit import CHANGED, ramp, swap
"""


@dataclass(frozen=True)
class Case:
    """Hold a program and one fact of it.

    The source is a module. It defines ``program`` (or ``make``, which returns what is compiled), and may
    define ``inputs``, ``change`` (makes the fact another one), ``run`` (calls what is compiled) and
    ``OPTIONS``. Where the fact holds from the import on, the source asks ``CHANGED``. ``SALT`` is a number of
    its own for each row, so that no row finds the graph of another one.

    Attributes:
        group: The name of its group.
        name: What differs.
        source: The text of the module, without `HEADER`.
        variables: What differs in the environment of the process.
        flags: What differs in the arguments of the interpreter.
        lowered: Whether Inductor lowers the operators. Else it calls them all, which compiles no C++.
        same_process: Whether eager has to run in the process of the restored run, such as for its number.
        judged_by_compile: Whether a compile without a cache is right where eager answers otherwise.
        files: More files beside the module, by name.
        saved: An object that the module reads with ``kit.saved``, such as arguments.
    """

    group: str
    name: str
    source: str
    variables: dict[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    lowered: bool = False
    same_process: bool = False
    judged_by_compile: bool = False
    files: dict[str, str] = field(default_factory=dict)
    saved: Any = None

    def text(self, salt: int) -> str:
        """Return the text of the module of a row."""
        return (HEADER + textwrap.dedent(self.source)).replace("SALT", f"{salt}.25")


def block(text: str, spaces: int = 4) -> str:
    """Return a text indented, for a place in another text."""
    return textwrap.indent(textwrap.dedent(text).strip("\n"), " " * spaces)
