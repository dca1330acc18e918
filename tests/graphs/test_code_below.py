"""Test that a digest of code has what the code reads by names that it makes, of caches, registries, sets,
loggers and tensors, and of modules and classes that a program changed; or that the code has none."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import types
from multiprocessing import Pipe
from pathlib import Path

import pytest

from cachesvc_client.graphs.code import memos
from cachesvc_client.graphs.code.followed import FollowedCode
from tests.differences.hunt import kit
from tests.differences.hunt.case import HEADER
from tests.differences.hunt.groups.made_below import CASES


def seen(case: str, changed: bool, folder: Path) -> tuple[str, str, str]:
    """Return the digest of a case's code, what is unknown of it, and what it answers in a child of this
    process."""
    before, read, change = CASES[case]
    ours, its = Pipe(duplex=False)
    if not (child := os.fork()):
        with contextlib.suppress(BaseException):
            kit.CHANGED = changed
            folder.mkdir()
            os.chdir(folder)
            module = types.ModuleType("below_program")
            sys.modules[module.__name__] = module
            exec(f"{HEADER}{before}\ndef read():\n    return {read}\n", vars(module))
            exec(change if changed else "", vars(module))
            followed = FollowedCode([vars(module)["read"]])
            try:
                answer = str(vars(module)["read"]())
            except Exception as error:  # noqa: BLE001 - an error is an answer
                answer = repr(error)
            its.send((followed.digest, followed.unknown, answer))
        os._exit(0)
    its.close()
    try:
        return tuple(ours.recv())
    finally:
        os.waitpid(child, 0)


@pytest.mark.parametrize("case", CASES)
def test_what_code_reads_is_in_its_digest_or_it_has_none(case: str, tmp_path: Path) -> None:
    digest, unknown, answer = seen(case, changed=False, folder=tmp_path / "one")
    changed, why, other = seen(case, changed=True, folder=tmp_path / "other")
    assert answer != other, "the change is not seen"
    assert unknown or why or digest != changed
    assert unknown or seen(case, changed=False, folder=tmp_path / "again")[0] == digest


@functools.lru_cache
def _smallest(kind: str) -> float:
    import torch

    return float(torch.finfo(torch.float32).eps) * len(kind)


def test_results_that_depend_on_plain_arguments_alone_do_not_count() -> None:
    """A service calls such a function when it likes: a health check would cost the hit."""

    def read(x: float) -> float:
        return x * _smallest("any")

    _smallest.cache_clear()
    memos._empty.pop(_smallest, None)
    _smallest("other")
    called = FollowedCode([read]).digest
    _smallest.cache_clear()
    assert FollowedCode([read]).digest == called
