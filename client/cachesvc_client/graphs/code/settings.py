"""Describes the settings of a process by which plain Python, numpy and torch compute and write numbers."""

from __future__ import annotations

import _locale
import sys
from collections.abc import Iterator, Set
from typing import Any

_WARNS = frozenset(("warn", "warn_explicit", "_warn"))
_RAISE = ("raise", "call", "log")


def of_process() -> dict[str, str]:
    """Return the settings by which plain Python computes in this thread, where they are not the defaults."""
    settings = {"locale of numbers": (_locale.setlocale(_locale.LC_NUMERIC), "C")}
    if hasattr(sys, "get_int_max_str_digits"):  # Python 3.10.7
        settings["digits of whole numbers"] = (
            str(sys.get_int_max_str_digits()),
            str(sys.int_info.default_max_str_digits),
        )
    settings["denormal numbers"] = ("zero" if sys.float_info.min / 2 == 0 else "", "")
    if (decimal := sys.modules.get("decimal")) is not None:
        now, usual = map(_decimals, (decimal.getcontext(), decimal.DefaultContext))
        settings["decimal numbers"] = (now, usual)
    return {name: here for name, (here, usual) in settings.items() if here != usual}


def _decimals(context: Any) -> str:
    traps = sorted(one.__name__ for one, is_on in context.traps.items() if is_on)
    return f"{context.prec} {context.rounding} {context.Emin} {context.Emax} {context.clamp} {traps}"


def below(names: Set[str]) -> Iterator[str]:
    """Yield the settings by which code below Dynamo with these names computes or writes beside those, where
    they are not the defaults: what warnings and errors of numpy do, how numbers are written."""
    if names & _WARNS and (raising := [one[1:] for one in _filters() if one[0] == "error"]):
        yield f"warnings that are raised {raising}"
    if (numpy := sys.modules.get("numpy")) is not None:
        errors = {name: does for name, does in numpy.geterr().items() if does in _RAISE}
        yield from (f"errors of numpy {errors}",) if errors else ()
        options = {
            name: one for name, one in numpy.get_printoptions().items() if _NUMPY.get(name, one) != one
        }
        yield from (f"texts of numpy {options}",) if options else ()
    if (torch := sys.modules.get("torch._tensor_str")) is not None:
        now, usual = (str(vars(one)) for one in (torch.PRINT_OPTS, type(torch.PRINT_OPTS)()))
        yield from (f"texts of torch {now}",) if now != usual else ()


def _filters() -> list[Any]:
    return list(getattr(sys.modules.get("warnings"), "filters", ()))


_NUMPY = {
    "edgeitems": 3, "threshold": 1000, "floatmode": "maxprec", "precision": 8, "suppress": False,
    "linewidth": 75, "nanstr": "nan", "infstr": "inf", "sign": "-", "formatter": None, "legacy": False,
}  # fmt: skip
"""How numpy writes numbers where no program says so; an option of another name is not compared."""
