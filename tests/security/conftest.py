"""One function's bundle, built once in a run by a real compile; and the count of attacks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.conftest import built_once, folder_of_the_run
from tests.e2e.harness import SCALAR

from .attacker import Made
from .attacks import attacks

if TYPE_CHECKING:
    from registry_making import Server

    from tests.security.test_operator_signs import Liar

NAME = "team-b/model"


@pytest.fixture(scope="session")
def honest(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Team B's bundle of what `programs/service.py` compiles, built once for all workers."""
    built = built_once(folder_of_the_run(request, tmp_path_factory), "honest", "small", name=NAME, **SCALAR)
    return Made(built.bundle, built.key)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """Where hostile code leaves a line."""
    return tmp_path / "marker"


@pytest.fixture
def operator(request: pytest.FixtureRequest, tmp_path: Path) -> Liar:
    """An operator's machine, and the module's registry, which tells the truth."""
    from tests.security.test_operator_signs import Liar

    server: Server = request.getfixturevalue("server")
    return Liar(server, tmp_path, url=server.url)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name for entries that no other test of the module has."""
    return f"m{abs(hash(request.node.name)):x}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many attacks of the threat model were tried, and which of them worked."""
    cases = {
        outcome: [
            report.nodeid.partition("[")[0]
            for report in terminalreporter.stats.get(outcome, ())
            if report.nodeid.partition("[")[0] in attacks()
        ]
        for outcome in ("passed", "failed", "error", "skipped")
    }
    worked = {*cases["failed"], *cases["error"]}
    tried = {*cases["passed"], *worked}
    left = {*cases["skipped"]} - tried
    if tried or left:
        number = len(cases["passed"]) + len(cases["failed"])
        terminalreporter.write_line(
            f"attacks: {len(tried)} tried in {number} cases, {len(worked)} worked, {len(left)} skipped, of "
            f"{len(attacks())} in docs/security/threat-model.md"
        )
