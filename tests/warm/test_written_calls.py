"""Test that a call is read as its source has it, and that nothing of a program is run for it."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import pytest

from cachesvc.warm.worker.observing.written_calls import NotPlain, written_call

OPTIONS = argparse.Namespace(width=16, act="gelu")


class Loaded:
    """Stands for a class of a library, whose function takes keywords out of its parameters."""

    asked = 0

    @classmethod
    def from_pretrained(cls, folder: str, *rest: Any, **options: Any) -> Any:
        options.pop("width", None)
        assert folder and not rest
        return written_call(sys._getframe(1), sys._getframe(0).f_code)

    @property
    def number(self) -> int:
        Loaded.asked += 1
        return 1


def make(**_options: Any) -> Any:
    return written_call(sys._getframe(1), sys._getframe(0).f_code)


def test_arguments_are_those_of_the_line_and_not_what_the_function_left_of_them():
    more = {"scale": -1.5}
    call = Loaded.from_pretrained(
        "folder", width=OPTIONS.width, act=OPTIONS.act, sizes=[1, OPTIONS.width], **more
    )
    values = {"folder": "folder", "width": 16, "act": "gelu", "sizes": [1, 16], "scale": -1.5}
    assert call == (__name__, "Loaded.from_pretrained", values)


def test_what_would_run_something_is_not_read():
    loaded = Loaded()
    with pytest.raises(NotPlain, match="number"):
        make(width=loaded.number)
    assert Loaded.asked == 1  # by the call itself
    with pytest.raises(NotPlain):
        make(width=len("abc"))


def test_a_function_that_has_no_name_in_a_module_is_no_factory():
    inner = lambda **_options: written_call(sys._getframe(1), sys._getframe(0).f_code)  # noqa: E731
    assert inner(width=1) is None
