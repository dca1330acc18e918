"""Test the canary with a restored kernel that computes something else than its source says.

Without the canary the numbers are wrong; with it they are right, in this process and in the next processes of
its node."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from cachesvc_client.bundle.pack import SourceFile

from .conftest import Built
from .harness import SCALAR, ProgramResult, run
from .rebuild import read_bundle, rebuild

pytestmark = pytest.mark.compiles


@dataclass
class Bundles:
    """Has three bundles: ``wrong`` is ``right`` but for the machine code of its kernel, which belongs to
    another function; ``newer`` is ``right``, published after it."""

    right: Path
    wrong: Path
    newer: Path
    trusted: str


@pytest.fixture(scope="module")
def bundles(small: Built, tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    place = tmp_path_factory.mktemp("poisoned")
    other, key = place / "other.cachesvc", str(small.key_file)
    result = run("build.py", str(other), key, "team/other", "other", place=place, prepared=True, **SCALAR)
    assert result.code == 0, result.err[-4000:]
    [code] = [file.data for file in read_bundle(other, small.key)[1] if file.path.endswith(".so")]

    def poison(file: SourceFile) -> SourceFile:
        return replace(file, data=code) if file.path.endswith(".so") else file

    wrong, newer = place / "wrong.cachesvc", place / "newer.cachesvc"
    rebuild(small.bundle, small.key, wrong, poison)
    rebuild(small.bundle, small.key, newer, lambda file: file)
    assert small.files(wrong) == small.files(newer)
    return Bundles(small.bundle, wrong, newer, small.trusted)


def _serve(
    place: Path, bundles: Bundles, bundle: Path, *options: str, compilers: bool = True, **variables: str
) -> ProgramResult:
    variables = {**SCALAR, "CACHESVC_TRUSTED_KEYS": bundles.trusted, **variables}
    return run(
        "canary.py", str(bundle), *options, place=place, compilers=compilers, prepared=True, **variables
    )


def test_without_a_canary_wrong_code_gives_wrong_numbers(tmp_path: Path, bundles: Bundles) -> None:
    """This test shows that the tests below can fail."""
    answer = _serve(tmp_path, bundles, bundles.wrong, compilers=False).answer
    assert answer["state"] == "hit" and answer["compilations"] == [0, 0, 0]
    assert all(difference > 1 for difference in answer["differences"])


@dataclass
class Withdrawal:
    """A start whose canary withdrew a revision, and its node."""

    place: Path
    first: ProgramResult


@pytest.fixture(scope="module")
def withdrawal(bundles: Bundles, tmp_path_factory: pytest.TempPathFactory) -> Withdrawal:
    place = tmp_path_factory.mktemp("withdrawal")
    return Withdrawal(place, _serve(place, bundles, bundles.wrong, CACHESVC_CANARY="1"))


def test_a_canary_keeps_wrong_numbers_from_the_caller(withdrawal: Withdrawal) -> None:
    """tests/versions runs this test on the oldest version of torch, too."""
    first = withdrawal.first
    answer = first.answer
    assert max(answer["differences"]) < 1e-5, answer
    assert answer["compilations"][0] == 0, "the first output is eager's"
    assert answer["compilations"][1] > 0, "the second output is compiled here"
    assert answer["compilations"][2] == answer["compilations"][1], (
        "the third output comes from the same compile"
    )
    assert answer["state"] == "inert" and len(answer["distrusted"]) == 1 and answer["random_kept"]
    assert "differs from eager by 2 " in answer["reasons"][0], answer["reasons"]
    assert first.err.count("differs from eager") == 1 and "Traceback" not in first.err


def test_the_node_remembers_the_revision_until_another_replaces_it(
    withdrawal: Withdrawal, bundles: Bundles
) -> None:
    second = _serve(withdrawal.place, bundles, bundles.wrong)
    answer = second.answer
    assert max(answer["differences"]) < 1e-5 and answer["distrusted"] == [], answer
    assert any("a canary on this node found its numbers wrong" in reason for reason in answer["reasons"])

    replaced = _serve(withdrawal.place, bundles, bundles.newer, CACHESVC_CANARY="1")
    assert replaced.answer["state"] == "hit" and replaced.answer["compilations"] == [0, 0, 0]
    [store] = (withdrawal.place / "home").glob(".cache/cachesvc/v1")
    assert not list((store / "distrusted").iterdir()), "the mark went away with the revision"


def test_a_right_revision_passes_unchanged_and_without_a_compiler(tmp_path: Path, bundles: Bundles) -> None:
    result = _serve(tmp_path, bundles, bundles.right, compilers=False, CACHESVC_CANARY="1")
    answer = result.answer
    assert answer["state"] == "hit" and answer["compilations"] == [0, 0, 0] and result.compilers == []
    assert max(answer["differences"]) < 1e-5 and answer["random_kept"]
    assert not any("canary" in reason for reason in answer["reasons"]), answer["reasons"]


def test_under_strict_a_wrong_output_is_an_error(tmp_path: Path, bundles: Bundles) -> None:
    result = _serve(tmp_path, bundles, bundles.wrong, CACHESVC_CANARY="1", CACHESVC_STRICT="1")
    assert result.code != 0 and "the canary found wrong numbers" in result.err


def test_in_a_sampled_start_wrong_numbers_are_found_after_the_answer(
    tmp_path: Path, bundles: Bundles
) -> None:
    result = _serve(tmp_path, bundles, bundles.wrong, "wait", CACHESVC_CANARY="sample:1")
    answer = result.answer
    assert answer["differences"][0] > 1, "the first answer has gone out"
    assert max(answer["differences"][1:]) < 1e-5 and answer["random_kept"], answer
    assert answer["compilations"][0] == 0 and answer["compilations"][1] > 0, "the next call compiles here"
    assert answer["state"] == "inert" and len(answer["distrusted"]) == 1
    assert "differs from eager by 2 " in answer["reasons"][0], answer["reasons"]
    assert result.err.count("differs from eager") == 1 and "Traceback" not in result.err

    second = _serve(tmp_path, bundles, bundles.wrong).answer
    assert any("a canary on this node found its numbers wrong" in reason for reason in second["reasons"])


def test_a_start_that_ends_after_its_calls_withdraws_as_well(tmp_path: Path, bundles: Bundles) -> None:
    """It does not wait: the comparison is made at the exit."""
    result = _serve(tmp_path, bundles, bundles.wrong, CACHESVC_CANARY="sample:1", CACHESVC_STRICT="1")
    assert result.code == 0 and all(difference > 1 for difference in result.answer["differences"])
    assert result.err.count("differs from eager") == 1 and "Traceback" not in result.err
    second = _serve(tmp_path, bundles, bundles.wrong).answer
    assert any("a canary on this node found its numbers wrong" in reason for reason in second["reasons"])


@pytest.mark.parametrize("value", ["sample:999999999", "smaple"])
def test_in_another_start_nothing_is_compared(tmp_path: Path, bundles: Bundles, value: str) -> None:
    result = _serve(tmp_path, bundles, bundles.wrong, "wait", compilers=False, CACHESVC_CANARY=value)
    answer = result.answer
    assert answer["state"] == "hit" and all(difference > 1 for difference in answer["differences"]), answer
    line = "CACHESVC_CANARY='smaple' does nothing, and no canary runs: allowed: 0, 1, sample or sample:N"
    assert result.err.count(line) == (value == "smaple"), result.err


def test_a_right_revision_passes_in_a_sampled_start(tmp_path: Path, bundles: Bundles) -> None:
    variables = {"CACHESVC_CANARY": "sample:1", "CACHESVC_LOG": "debug"}
    result = _serve(tmp_path, bundles, bundles.right, "wait", compilers=False, **variables)
    answer = result.answer
    assert answer["state"] == "hit" and answer["compilations"] == [0, 0, 0] and result.compilers == []
    assert not any("canary" in reason for reason in answer["reasons"]), answer["reasons"]
    assert result.err.count("a first output agrees with eager") == 1, result.err


def test_frames_that_a_node_recorded_of_wrong_graphs_are_compared_too(
    tmp_path: Path, bundles: Bundles
) -> None:
    """The node's own results are no revision of the bundle's, and call its graphs."""
    own = tmp_path / "home/.cache/cachesvc/v1/own"
    first = _serve(tmp_path, bundles, bundles.wrong, "keep")
    assert first.answer["traces"] > 0 and len(list(own.iterdir())) == 1, first.answer
    second = _serve(tmp_path, bundles, bundles.wrong, "keep")
    assert (second.answer["traces"], second.answer["state"]) == (0, "hit"), second.answer
    assert all(difference > 1 for difference in second.answer["differences"])

    watched = _serve(tmp_path, bundles, bundles.wrong, "keep", CACHESVC_CANARY="1").answer
    assert max(watched["differences"]) < 1e-5 and len(watched["distrusted"]) == 1, watched
    assert watched["compilations"][0] == 0 and watched["compilations"][1] > 0, watched
    last = _serve(tmp_path, bundles, bundles.wrong, "keep").answer
    assert max(last["differences"]) < 1e-5 and last["traces"] > 0, last
