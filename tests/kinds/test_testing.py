"""Test that the kit of kinds finds what is wrong with a kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cachesvc_client.kinds.cuda.kind import CudaState
from cachesvc_client.kinds.kind import Kind
from cachesvc_client.kinds.rules import FileRule, KindRules
from cachesvc_client.kinds.testing import Example, KindConformance

from .test_cuda import TestConformance as OfCuda


def with_rule(kind: Kind, rule: FileRule) -> Kind:
    return replace(kind, rules=KindRules(kind.name, (rule,)))


class ForgetsNothing(CudaState):
    def forget(self, paths, keys) -> None:
        pass

    def used_files(self, root, **_) -> set[str]:
        return {path for path in ("0/1/0a67439f97f785",) if root.is_dir()}


WRONG: dict[str, Callable[[Kind], Kind]] = {
    "test_names_and_variables_are_valid_and_unique": lambda kind: replace(
        kind, folder=replace(kind.folder, variable="TRITON_CACHE_DIR")
    ),
    "test_no_rule_knows_another_path": lambda kind: with_rule(kind, FileRule(r".*")),
    "test_files_of_the_compiler_are_known": lambda kind: with_rule(kind, FileRule(r"other")),
    "test_a_fresh_state_has_used_nothing": lambda kind: replace(kind, start=ForgetsNothing),
    "test_used_files_are_listed_until_they_are_forgotten": lambda kind: replace(kind, start=ForgetsNothing),
}


@pytest.mark.parametrize("test", WRONG)
def test_the_kit_refuses(test: str, tmp_path: Path) -> None:
    suite = OfCuda()
    words = {"tmp_path": tmp_path} if "tmp_path" in getattr(suite, test).__code__.co_varnames else {}
    getattr(suite, test)(**words)
    suite.kind = WRONG[test](suite.kind)
    (tmp_path / "again").mkdir()
    with pytest.raises(AssertionError):
        getattr(suite, test)(**dict.fromkeys(words, tmp_path / "again"))


def test_the_kit_refuses_a_path_of_the_builder_in_a_file(tmp_path: Path) -> None:
    class Leaks(KindConformance):
        kind = with_rule(OfCuda.kind, FileRule(r"[a-z]{4}"))
        examples = (Example("file", b"a path: {root}"),)
        others = ("other",)

        def use(self, *_) -> set[str]:
            return set()

    with pytest.raises(AssertionError, match="no path of the builder travels"):
        Leaks().test_a_file_survives_two_moves_unchanged(tmp_path)
