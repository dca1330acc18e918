"""Start services whose folders of cachesvc fail while they run: with a sample of the matrix that
`make faults` runs as a whole, and with what the matrix does not have."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from cachesvc_client.kinds.whole_library import is_whole
from tests.e2e.conftest import Built, built_once, folder_of_the_run
from tests.e2e.harness import WARMED, run

from .matrix import FAULTS, SERVICE, Cell, injector, reference, run_cell

CHEAP = [
    (fault, moment) for fault, how in FAULTS.items() for moment in ("install", "start", "exit") if " " in how
]
"""Cells in which little is compiled, or nothing."""
BROKE = [
    ("stat: ESTALE", "first compile"),
    ("files cut to a tenth", "first compile"),
    ("write: ENOSPC", "later compile"),
]
"""Cells of services that died before their causes were closed."""


@dataclass
class Host:
    """What cells have in common."""

    library: Path
    built: Built
    expected: dict[str, list[float]]
    """What the service prints without cachesvc."""

    def cell(self, place: Path, fault: str, moment: str, *words: str, prepared: bool = True) -> Cell:
        """Run the service with a fault, and compare it with the service without cachesvc."""
        built = self.built
        what = (self.library, built.bundle, built.trusted, fault, moment, self.expected, *words)
        return run_cell(place / "cell", *what, prepared=prepared)


@pytest.fixture(scope="module")
def host(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Host:
    """Compile the injector, and the function that the services are to find."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    folder = tmp_path_factory.mktemp("faults")
    built = built_once(folder_of_the_run(request, tmp_path_factory), "scalar", "small", **WARMED)
    library = injector(folder)
    return Host(library, built, reference(folder / "plain", library))


@pytest.mark.parametrize(("fault", "moment"), [*BROKE, *random.Random("faults").sample(CHEAP, 5)])
def test_a_service_does_what_it_does_without_cachesvc(
    tmp_path: Path, host: Host, fault: str, moment: str
) -> None:
    cell = host.cell(tmp_path, fault, moment)
    assert not cell.broken, cell.warnings
    assert not any("Traceback" in line for line in cell.warnings if line.startswith("cachesvc"))
    if moment == "later compile":
        assert cell.said == "own folder" and cell.failed
        assert len([line for line in cell.warnings if "goes on in its own folder" in line]) == 1
        assert cell.reasons[0].startswith("PyTorch went on in its own folder, because ")


@pytest.mark.parametrize("words", [(), ("dynamic=1",)])
def test_what_is_compiled_for_gradients_is_repeated_in_pytorchs_own_folder(
    tmp_path: Path, host: Host, words: tuple[str, ...]
) -> None:
    """Gradients are compiled when they are asked for, unless the number of rows is dynamic."""
    moment = "forward" if words else "backward"
    cell = host.cell(tmp_path, "write: ENOSPC", moment, "trains=3", *words)
    assert not cell.broken and cell.said == "own folder", cell


def test_a_folder_that_is_gone_before_pytorch_is_imported_breaks_no_import(
    tmp_path: Path, host: Host
) -> None:
    """PyTorch makes its folder in an import of its own."""
    cell = host.cell(tmp_path, "every call: ESTALE", "first compile", prepared=False)
    assert not cell.broken and cell.said == "own folder", cell


def test_an_error_that_pytorch_has_without_cachesvc_is_raised_and_the_folder_is_kept(
    tmp_path: Path, host: Host
) -> None:
    words = (f"bundle={host.built.bundle}", "moment=later compile", "fault=")
    variables = {**WARMED, "CACHESVC_TRUSTED_KEYS": host.built.trusted, "LD_PRELOAD": str(host.library)}
    result = run(str(SERVICE), *words, place=tmp_path, prepared=True, compilers=False, **variables)
    assert result.code == 1 and "InductorError: InvalidCxxCompiler" in result.err, result.err[-3000:]
    assert "goes on in its own folder" not in result.err


@pytest.mark.parametrize("share", [0, 0.001, 0.04, 0.1, 0.3])
def test_a_library_that_is_cut_short_is_not_loaded(tmp_path: Path, host: Host, share: float) -> None:
    library = tmp_path / "cut.so"
    shutil.copy(host.library, library)
    assert is_whole(library)
    with open(library, "r+b") as file:
        file.truncate(int(library.stat().st_size * share))
    assert not is_whole(library)
    assert not is_whole(tmp_path / "absent.so")
