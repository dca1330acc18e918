"""Test which forms of programs start without traces, each with the builder's numbers; and that a form that
changed is traced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.environment.releases import release

from .harness import SCALAR, run

pytestmark = pytest.mark.compiles

NOT_RECORDED = {
    "python_random": "random numbers of Python's module random",
    "whole_lstm": "Dynamo does not compile it",
    "function_returned": "its code holds an object",
    "named_tuple": "whose globals are no module's",
}
"""Forms that are traced in every start -> the reason in the report of `warm`."""


class Forms:
    """A builder, the process that recorded its frames, and services of both."""

    def __init__(self, place: Path) -> None:
        key = SigningKey.generate()
        key.save(place / "signing.key")
        self._variables = {**SCALAR, "CACHESVC_TRUSTED_KEYS": str(key.public)}
        self._bundle = place / "recorded.cachesvc"
        self.built = self.run("compile", place / "builder", str(place / "signing.key"))["forms"]
        recorded = self.run("record", place / "recorder", str(place / "signing.key"))
        self.not_recorded: list[str] = recorded["not_recorded"]

    def run(self, what: str, place: Path, more: str) -> dict[str, Any]:
        arguments = ("frames_forms.py", what, str(self._bundle), more)
        return run(*arguments, place=place, prepared=True, **self._variables).answer


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Forms:
    import torch

    if release(torch.__version__) != "2.13":
        pytest.skip("other releases refuse other forms, each with a trace")
    return Forms(tmp_path_factory.mktemp("forms"))


def test_the_forms_start_without_traces(tmp_path: Path, forms: Forms) -> None:
    served = forms.run("serve", tmp_path, "nothing")["forms"]
    assert {form: one["digest"] for form, one in served.items()} == {
        form: one["digest"] for form, one in forms.built.items()
    }
    traced = {form for form, one in served.items() if one["traces"]}
    assert traced == NOT_RECORDED.keys(), forms.not_recorded
    assert not any(one["compilations"] for one in served.values())
    assert all(one["traces"] for one in forms.built.values())
    for reason in NOT_RECORDED.values():
        assert [line for line in forms.not_recorded if reason in line], forms.not_recorded
    assert len(forms.not_recorded) == len(NOT_RECORDED), forms.not_recorded


def test_changed_forms_are_traced_with_right_numbers(tmp_path: Path, forms: Forms) -> None:
    served = forms.run("serve", tmp_path, "change")["forms"]
    assert [form for form, one in served.items() if not one["traces"]] == []
    assert max(one["difference"] for one in served.values()) < 1e-2, served
