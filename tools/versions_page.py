"""``python -m tools.versions_page``: writes docs/reference/versions.md.

`make versions` runs the tests and then this; `make pages` runs this alone, over the results that are noted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from cachesvc_client.wire.factors import BY_NAME
from tools.hook_contract import Row, Table, rows
from tools.markdown import DOCS, generated, table
from tools.private_names import MISSING
from tools.versions import GROUPS, RESULTS

PAGE = DOCS / "reference" / "versions.md"
MODELS = RESULTS.with_name("versions.json")
"""Results of `benchmarks/versions.py`: models that were compiled, published and restored on each release."""

LIBRARIES = ("torch", "triton", "python_abi", "cuda", "driver", "cxx", "libc")
"""Factors that are versions of what an entry was built with; `wire.factors` has their rules."""
RULES = {"equal": "the version is the same", "at_least": "the consumer's version is not lower"}
CUDNN = """\
What cuDNN and the driver compile themselves (the kind `cuda`) is found by the driver. It compiles anew what
another compiler made or what is for another GPU (seen with driver 580), so another version of either costs
time and runs nothing wrong ([ADR 13](../adr/0013-compiled-code.md)).
"""
TRITON_3_4 = """\
Triton 3.4 (torch 2.8) leaves the values of a module's constants (`tl.constexpr`) out of its own key: after an
edit of such a constant, its cache folder has the old kernel. For that reason cachesvc restores nothing on a
GPU with Triton 3.4.
"""

HEAD = f"""\
# Versions of PyTorch and Triton

{generated("tools/hook_contract.json and benchmarks/results")}

What is known of each release, and how it is known. *Names* are the private names of the release that cachesvc
wraps or waits for, read in its sources. *Tests* are those of hooks, keys and kinds, the canary and a restored
process, run with that release on a CPU. *Matrix* are differences between a builder and a service, each with
the outcome that it must have: a true hit, a compile with its reason, or a refusal. *Models* were compiled,
published and restored in a fresh process by `benchmarks/versions.py`. On a GPU only torch 2.11 with Triton
3.6 was run ([GPU](../gpu.md)): what cachesvc does with other releases of Triton was read, and run as far as
it needs no GPU.
"""


def render() -> str:
    """Return the whole page."""
    contract = Table.read()
    tests = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    models = json.loads(MODELS.read_text())["versions"] if MODELS.exists() else {}
    lines = [HEAD, "## torch", ""]
    lines += table(
        ("torch", "names", "tests", "matrix", "of", "models", "on a GPU"),
        (_torch_row(contract, release, tests, models) for release in contract.releases["torch"]),
    )
    lines += ["", *_pythons(tests), "## Triton", ""]
    lines += table(
        ("Triton", "names", "on a GPU"),
        (
            (release, _names(contract, "triton", release), _gpu(release, "3.6"))
            for release in contract.releases["triton"]
        ),
    )
    lines += ["", TRITON_3_4, "", *_missing(contract), "", *_meanings(), "", *_failed(tests)]
    return "\n".join(lines).rstrip() + "\n"


def _torch_row(
    contract: Table, release: str, tests: dict[str, Any], models: dict[str, Any]
) -> tuple[str, ...]:
    run, measured = tests.get(release), models.get(release, {}).get("models", {})
    of = f"{run['date']}, Python {run['python']}, Triton {run['triton'] or 'not installed'}" if run else ""
    clean = sum(
        not (model.get("compilations") or model.get("compilers")) and bool(model.get("equal"))
        for model in measured.values()
    )
    said = f"{clean} of {len(measured)} compile nothing, with equal outputs" if measured else "not run"
    names, gpu = _names(contract, "torch", release), _gpu(release, "2.11")
    return release, names, _outcome(run, "tests"), _outcome(run, "matrix"), of, said, gpu


def _outcome(run: dict[str, Any] | None, group: str) -> str:
    """Return what came of a group of tests on a release."""
    counts = (run or {}).get(group)
    if counts is None:
        return "not run"
    return f"{counts['passed']} passed, {len(counts['failed'])} failed, {counts['skipped']} skipped"


def _pythons(tests: dict[str, Any]) -> Iterator[str]:
    """Yield what came of tests on other versions of Python than that of the table of releases."""
    rows = [
        (
            run["python"],
            release.partition("-")[0],
            _outcome(run, "tests"),
            _outcome(run, "matrix"),
            run["date"],
        )
        for release, run in tests.items()
        if "-" in release
    ]
    if rows:
        yield "## Python"
        yield ""
        yield "The same tests with other versions of Python. On 3.10 there is the client alone:"
        yield "`cachesvc warm` and the registry need 3.11."
        yield ""
        yield from table(("Python", "torch", "tests", "of"), rows)
        yield ""


def _names(contract: Table, package: str, release: str) -> str:
    expected = [row for row in rows() if row.package == package and _expected(row, release)]
    present = sum(contract.form(row, release) != MISSING for row in expected)
    return f"{present} of {len(expected)}"


def _expected(row: Row, release: str) -> bool:
    return not row.hooks or any(hook.expected_in(release) for hook in row.hooks)


def _gpu(release: str, ran: str) -> str:
    return "yes" if release.startswith(f"{ran}.") else "not run on a GPU"


def _missing(contract: Table) -> Iterator[str]:
    """Yield a table of the names that some releases do not have."""
    lacking = []
    for row in rows():
        without = [known for known in contract.releases[row.package] if contract.form(row, known) == MISSING]
        if without:
            lacking.append((f"`{row.name}`", ", ".join(without), row.meaning()))
    yield "## Names that some releases do not have"
    yield ""
    yield from table(("name", "not in", "what cachesvc does there"), lacking)


def _meanings() -> Iterator[str]:
    """Yield what a version of each library means for an entry."""
    yield "## What another version of a library means for an entry"
    yield ""
    yield from table(("factor", "the entry fits if", "why"), map(_meaning, LIBRARIES))
    yield ""
    yield CUDNN


def _meaning(name: str) -> tuple[str, str, str]:
    factor = BY_NAME[name]
    decides = RULES[factor.rule] if factor.decider == "cachesvc" else "in any case: it decides nothing"
    return f"`{name}`", decides, factor.why


def _failed(tests: dict[str, Any]) -> Iterator[str]:
    """Yield the tests that failed, by release."""
    failed = [
        (release, f"`{name}`")
        for release, run in tests.items()
        for group in GROUPS
        for name in run.get(group, {}).get("failed", [])
    ]
    if failed:
        yield "## Tests that failed"
        yield ""
        yield from table(("torch", "test"), failed)


if __name__ == "__main__":
    PAGE.write_text(render())
