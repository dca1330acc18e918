"""Test that a kind and a store in wheels of their own work beside cachesvc, and touch no file of it.

The wheels are built offline and installed into a folder that is on no path but that of the processes here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import ProgramResult, run
from tests.e2e.registries import Served, serve

from .wheels import install, passes_its_kit

pytestmark = [pytest.mark.servers, pytest.mark.slow]

EXAMPLES = ("kinds/cffi", "stores/fsspec")
SOURCE = "static double twice(double x) { return x + x; }"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("site"), *EXAMPLES)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_passes_the_kit_that_cachesvc_ships(example: str, site: Path) -> None:
    passes_its_kit(example, {**os.environ, "PYTHONPATH": str(site), "CACHESVC_KINDS": "cffi"})


@pytest.fixture(scope="module")
def registry(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Return a registry whose packs lie in the outside store."""
    place = tmp_path_factory.mktemp("registry")
    url = f"fsspec+local://{place}/packs"
    variables = {**os.environ, "PYTHONPATH": str(site), "CACHESVC_SERVER_PACKS_URL": url}
    with serve(place, variables=variables, prepared=False) as served:
        yield served
    packs = [path for path in (place / "packs" / "objects").rglob("*") if path.is_file()]
    assert packs and not list((place / "data").glob("blobs/objects/*")), "the store has the packs"


def start(
    place: Path, site: Path | str, *words: str, compilers: bool = True, **variables: str
) -> ProgramResult:
    variables = {
        "PYTHONPATH": f"{site}{os.pathsep}{Path(run.__code__.co_filename).parent}/programs",
        **variables,
    }
    return run(
        "cffi_service.py", "team/cffi", *(words or ("",)), place=place, compilers=compilers, **variables
    )


@pytest.fixture(scope="module")
def built(registry: Served, site: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the answer of the builder, which published."""
    place = tmp_path_factory.mktemp("builder")
    variables = {**registry.publisher, "CACHESVC_MODE": "readwrite", "CACHESVC_KINDS": "cffi"}
    return start(place, site, "", "publish", **variables).answer


def test_the_builder_counts_and_publishes_what_it_compiled(built: dict[str, Any]) -> None:
    assert built["published"] and built["answer"] == 8.0
    assert built["counts"] == {"cffi": {"builds": 1}} and built["cost"] == {"cffi": 1}


def test_a_fresh_host_without_a_compiler_hits(
    built: dict[str, Any], registry: Served, site: Path, tmp_path: Path
) -> None:
    result = start(tmp_path, site, compilers=False, CACHESVC_KINDS="cffi", **registry.variables)
    answer = result.answer
    assert (answer["state"], answer["compilations"], answer["answer"]) == ("hit", 0, 8.0), answer
    assert result.compilers == [] and "/inductor/cffi/_cffi_" in answer["place"]
    assert Path(answer["place"]).name == Path(built["place"]).name


@pytest.mark.usefixtures("built")
def test_another_source_misses(registry: Served, site: Path, tmp_path: Path) -> None:
    answer = start(tmp_path, site, SOURCE, CACHESVC_KINDS="cffi", **registry.variables).answer
    assert answer["answer"] == 9.0 and answer["counts"] == {"cffi": {"builds": 1}}
    assert answer["state"] == "inert"


@pytest.mark.usefixtures("built")
def test_flags_that_the_name_lacks_take_nothing_from_the_entry(
    registry: Served, site: Path, tmp_path: Path
) -> None:
    variables = {**registry.variables, "CACHESVC_KINDS": "cffi", "CFLAGS": "-O0"}
    answer = start(tmp_path, site, **variables).answer
    assert answer["answer"] == 8.0 and answer["counts"] == {"cffi": {"builds": 1}}
    assert Path(answer["place"]).parent.name == "own" and answer["state"] == "inert"
    assert "a library of cffi's is in no entry: CFLAGS is set" in answer["reasons"]


@pytest.mark.usefixtures("built")
def test_a_kind_that_no_variable_names_is_not_imported(registry: Served, site: Path, tmp_path: Path) -> None:
    answer = start(tmp_path, site, CFFI_TMPDIR=str(tmp_path), **registry.variables).answer
    assert not answer["loaded"] and answer["answer"] == 8.0 and answer["counts"] == {}
