"""Faults that are planted into the real code, each in a fork of its own; the fuzzer must find each.

A fault is one check less. The search draws plain random inputs with seeds from 0 on, so that it is the same
in each run.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

BUDGET = 20_000
"""Inputs in which a fault must be found."""
REPOSITORY = Path(__file__).resolve().parents[3]
FAULTS: dict[str, tuple[str, Callable[[], None]]] = {}
"""By the name of the fault: the parser that finds it, and what plants it."""


def _fault(parser: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def register(plant: Callable[[], None]) -> Callable[[], None]:
        FAULTS[plant.__name__] = (parser, plant)
        return plant

    return register


class _Equal(str):
    """A text that equals every other."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


@_fault("envelope")
def an_unknown_payload_type_is_accepted() -> None:
    from cachesvc_client.bundle import check

    check.PAYLOAD_TYPE = _Equal()


@_fault("envelope")
def the_signature_is_over_the_payload_written_again() -> None:
    from cachesvc_client.bundle import check, seal

    def pae(payload_type: str, payload: bytes) -> bytes:
        try:
            again = json.dumps(json.loads(payload), sort_keys=True, separators=(",", ":")).encode()
        except (ValueError, RecursionError):
            again = payload
        return seal.pae(payload_type, again)

    check.pae = pae


@_fault("envelope")
def the_lane_of_a_statement_is_not_compared() -> None:
    from cachesvc_client.bundle import check

    inner = check._check_statement
    check._check_statement = lambda said, *rest: inner(dataclasses.replace(said, lane=None), *rest)


@_fault("manifest")
def a_path_is_not_checked() -> None:
    from cachesvc_client.wire.manifest import records

    records._PATH = re.compile(".*", re.DOTALL)


@_fault("manifest")
def a_file_may_lie_outside_of_the_pack() -> None:
    from cachesvc_client.bundle.layout import Layout

    Layout._check_place = lambda *_: None


@_fault("manifest")
def two_files_may_have_one_path() -> None:
    from cachesvc_client.bundle import layout

    layout._check_names = lambda *_: None


@_fault("manifest")
def any_amount_may_be_unpacked() -> None:
    from cachesvc_client.bundle import layout

    layout._check_amount = lambda *_: None


@_fault("pack")
def the_digest_of_a_frame_is_not_compared() -> None:
    from cachesvc_client.bundle import pack
    from cachesvc_client.wire.digest import Digest

    class Lenient(Digest):
        __slots__ = ()
        of = staticmethod(lambda _data: _Equal())

    pack.Digest = Lenient


@_fault("pack")
def the_digest_of_a_pack_is_not_compared() -> None:
    from cachesvc_client.bundle import check
    from cachesvc_client.wire.digest import Digest

    class Lenient(Digest):
        __slots__ = ()
        of_chunks = staticmethod(lambda chunks: (list(chunks), _Equal())[1])

    check.Digest = Lenient


@_fault("pack")
def the_size_of_a_frame_is_trusted() -> None:
    import zstandard

    from cachesvc_client.bundle.pack import PackReader
    from cachesvc_client.wire.errors import Corrupt

    def decompress(_self: Any, stored: bytes, raw: int, index: int) -> bytes:
        try:
            return zstandard.ZstdDecompressor().decompress(stored, max_output_size=raw)
        except zstandard.ZstdError as error:
            raise Corrupt(f"frame {index}: {error}") from None

    PackReader._decompress = decompress


@_fault("pack")
def links_below_a_folder_are_followed() -> None:
    from cachesvc_client.node import safe_files

    safe_files.FOLDER_FLAGS &= ~os.O_NOFOLLOW


@_fault("bundle")
def the_length_of_an_envelope_is_not_bounded() -> None:
    from cachesvc_client.bundle import file

    file._envelope_size = lambda header, _what: int.from_bytes(header[18:], "big")


@_fault("publish")
def a_registry_takes_what_was_signed_for_another_name() -> None:
    from cachesvc_client.trust import accept

    inner = accept.check_envelope
    accept.check_envelope = lambda envelope, **more: inner(envelope, **{**more, "expected": None})


@_fault("login")
def a_login_file_that_others_may_write_is_read() -> None:
    from cachesvc_client.config import login

    class Lenient:
        """The module ``os``, with files that nobody else may write."""

        fstat = staticmethod(lambda handle: os.stat_result((0o100600, *os.fstat(handle)[1:])))

        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

    login.os = Lenient()


@_fault("metadata")
def metadata_count_without_the_signature_of_their_role() -> None:
    from cachesvc_client.trust_root.signed import SignedFile

    SignedFile.require = lambda *_: None


@_fault("metadata")
def older_metadata_count() -> None:
    from cachesvc_client.trust_root import updater

    updater._require_not_older = lambda *_: None


def python_environment() -> dict[str, str]:
    """Returns the environment of a process that imports what the tests import."""
    places = [REPOSITORY, REPOSITORY / "tests/bundle", REPOSITORY / "tests/registry"]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places)), "PYTHONHASHSEED": "0"}


def search(budget: int = BUDGET) -> list[dict[str, Any]]:
    """Searches for each planted fault, each in a fork of one process. Returns for each its parser, after
    how many inputs it was found (``None``: it was not), what showed it, and what the same input showed in the
    code without the fault (empty: nothing)."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.security.fuzz.planted", str(budget)],
        cwd=REPOSITORY,
        env=python_environment(),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def _main(budget: int) -> None:
    from .parsers import all_parsers

    all_parsers()  # imports everything, once for all forks
    for name in sorted(FAULTS):
        parser, plant = FAULTS[name]
        found, shown = _in_fork(lambda parser=parser, plant=plant: _first(parser, plant, range(budget)))
        control = ""
        if found is not None:
            last = range(found - 1, found)
            control = _in_fork(lambda parser=parser, last=last: _first(parser, lambda: None, last))[1]
        finding = {"fault": name, "parser": parser, "inputs": found, "shown": shown, "control": control}
        print(json.dumps(finding), flush=True)


def _first(parser: str, plant: Callable[[], None], numbers: range) -> tuple[int | None, str]:
    """Returns how many inputs it took until one was not handled, and what that input showed."""
    from .parsers import all_parsers, opened

    with opened(all_parsers()[parser]) as check:
        plant()
        for number in numbers:
            try:
                check(random.Random(number))
            except Exception as error:  # noqa: BLE001 - whatever it shows itself by
                return number + 1, "".join(traceback.format_exception_only(error)).strip()[:120]
    return None, ""


def _in_fork(act: Callable[[], tuple[int | None, str]]) -> tuple[int | None, str]:
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(writes, json.dumps(act()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writes)
    with open(reads, "rb") as answer:
        said = answer.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    found, shown = json.loads(said)
    return found, shown


if __name__ == "__main__":
    _main(int(sys.argv[1]))
