"""What is fuzzed: each parser takes choices, makes one hostile input of them, and judges the outcome.

A parser returns the outcome as one line. It raises whatever the code raises that is no documented error, and
``AssertionError`` if what was accepted breaks a rule. The rules are written anew here: they do not call the
code that they judge.
"""

from __future__ import annotations

import random
import re
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cachesvc_client.wire.errors import CacheSvcError

Check = Callable[[random.Random], str]
"""Makes one input, gives it to the parser, judges what it did, and returns the outcome."""

SECONDS = 5.0
"""Seconds of CPU that one input may take."""
GROWTH_KIB = 300 << 10
"""KiB by which one input may raise the largest memory of the process."""


@dataclass(frozen=True)
class Parser:
    """``open`` returns a context with the check, and takes a folder that is its own. ``share``: parts of a
    run's inputs."""

    name: str
    open: Callable[[Path], object]
    share: int


@contextmanager
def opened(parser: Parser) -> Iterator[Check]:
    """Opens a parser in a folder of its own; each input is bounded in time and memory."""
    with tempfile.TemporaryDirectory(prefix="cachesvc-fuzz-") as folder, parser.open(Path(folder)) as check:

        def bounded(choose: random.Random) -> str:
            began, peak = time.process_time(), _peak()
            outcome = check(choose)
            assert time.process_time() - began < SECONDS, "an input took too long"
            assert _peak() - peak < GROWTH_KIB, "an input took too much memory"
            return outcome

        yield bounded


def described(error: CacheSvcError) -> str:
    """Returns the kind of an error and the form of its message, without what differs from input to input."""
    assert "\n" not in str(error) and str(error).isprintable(), "the message is not one printable line"
    form = re.sub(r"'[^']*'|\"[^\"]*\"|/\S+|\d+", "_", error.message)
    return f"{type(error).__name__}: {form[:50]}"


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def all_parsers() -> dict[str, Parser]:
    """Returns every parser by name."""
    from . import bundles, configuration, provenance, requests, trust_metadata

    modules = (bundles, requests, configuration, provenance, trust_metadata)
    parsers = [parser for module in modules for parser in module.PARSERS]
    return {parser.name: parser for parser in parsers}
