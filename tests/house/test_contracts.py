"""Test that each import contract finds a planted wrong import, and that the code keeps all contracts."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib

ROOT = Path(__file__).parents[2]
CONTRACTS = [
    contract["name"]
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
]

# (contract, importing module, imported module). Modules that do not exist yet are planted as well.
PLANTS = [
    (
        "The client never imports the server's distribution",
        "cachesvc_client.planted",
        "cachesvc.domain",
    ),
    ("The client's rooms, one way", "cachesvc_client.wire.planted", "cachesvc_client.bundle"),
    ("The client's rooms, one way", "cachesvc_client.bundle.planted", "cachesvc_client.node"),
    ("The client's rooms, one way", "cachesvc_client.node.planted", "cachesvc_client.http"),
    (
        "The client's rooms, one way",
        "cachesvc_client.restore.revision_restore",
        "cachesvc_client.session.session",
    ),
    ("The client's rooms, one way", "cachesvc_client.outcome.planted", "cachesvc_client.session"),
    ("The client's rooms, one way", "cachesvc_client.graphs.planted", "cachesvc_client.kinds"),
    ("The client's rooms, one way", "cachesvc_client.ranks.planted", "cachesvc_client.restore"),
    ("The client's rooms, one way", "cachesvc_client.room_without_a_place", "json"),
    ("The server's rooms, one way", "cachesvc.domain.planted", "cachesvc.registry.planted"),
    ("The server's rooms, one way", "cachesvc.blobs.planted", "cachesvc.index.planted"),
    ("The server's rooms, one way", "cachesvc.registry.planted", "cachesvc.api.planted"),
    ("The server's rooms, one way", "cachesvc.api.planted", "cachesvc.cli.planted"),
    ("Bundle, node and wire: no network, no compiler", "cachesvc_client.bundle.planted", "http.client"),
    ("Bundle, node and wire: no network, no compiler", "cachesvc_client.node.planted", "socket"),
    ("Bundle, node and wire: no network, no compiler", "cachesvc_client.node.planted", "torch"),
    (
        "The server's pure rules import wire and nothing else of the client",
        "cachesvc.domain.planted",
        "cachesvc_client.bundle",
    ),
    ("Warm stands on the client alone", "cachesvc.warm.planted", "cachesvc.registry.planted"),
    ("Concrete backends are named in bootstrap alone", "cachesvc.api.planted", "cachesvc.blobs.s3"),
    ("Concrete backends are named in bootstrap alone", "cachesvc.registry.planted", "cachesvc.blobs.local"),
    ("Each room's packages from outside", "cachesvc_client.wire.planted", "zstandard"),
    ("Each room's packages from outside", "cachesvc_client.planted", "requests"),
    ("Each room's packages from outside", "cachesvc_client.http.registry", "torch"),
    ("Each room's packages from outside", "cachesvc.domain.planted", "pydantic"),
    ("Each room's packages from outside", "cachesvc.registry.planted", "sqlmodel"),
    ("Each room's packages from outside", "cachesvc.index.planted", "boto3"),
    ("Each room's packages from outside", "cachesvc.api.planted", "redis"),
    ("Each room's packages from outside", "cachesvc.registry.planted", "fastapi"),
]


@pytest.fixture
def copy(tmp_path):
    """Copy the two packages and the contracts into a folder of their own."""
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "cachesvc", tmp_path / "cachesvc", ignore=skip)
    shutil.copytree(ROOT / "client" / "cachesvc_client", tmp_path / "cachesvc_client", ignore=skip)
    shutil.copytree(ROOT / "tools", tmp_path / "tools", ignore=skip)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint(folder):
    command = "import sys; from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", command, "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def plant(folder, module, text):
    """Add ``text`` to a module, and make the module with its packages if it is not there."""
    path = folder / (module.replace(".", "/") + ".py")
    if (path.with_suffix("") / "__init__.py").exists():
        path = path.with_suffix("") / "__init__.py"
    for parent in list(path.relative_to(folder).parents)[:-1]:
        (folder / parent).mkdir(exist_ok=True)
        (folder / parent / "__init__.py").touch()
    with path.open("a") as file:
        file.write(text)


def test_all_contracts_are_kept(copy):
    result = lint(copy)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{len(CONTRACTS)} kept, 0 broken" in result.stdout


def test_every_contract_has_a_plant():
    assert {contract for contract, _, _ in PLANTS} == set(CONTRACTS)


@pytest.mark.parametrize(("contract", "importer", "imported"), PLANTS)
def test_a_wrong_import_is_found(copy, contract, importer, imported):
    if imported.startswith("cachesvc"):
        plant(copy, imported, "")
    plant(copy, importer, f"\nimport {imported}\n")
    result = lint(copy)
    assert result.returncode != 0, result.stdout
    assert f"{contract} BROKEN" in result.stdout, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("cachesvc_client.restore.name_restore", "cachesvc_client.session.process"),
        ("cachesvc_client.outcome.report", "cachesvc_client.session.process"),
        ("cachesvc_client.canary.withdraw", "cachesvc_client.session.process"),
        ("cachesvc_client.own_results.keep", "cachesvc_client.session.process"),
        ("cachesvc_client.ranks.agreement", "cachesvc_client.session.deadline"),
        ("cachesvc_client.node.trust_scope", "cachesvc_client.config"),
    ],
)
def test_a_wrong_import_for_type_checkers_is_found(copy, importer, imported):
    plant(copy, importer, f"\nif TYPE_CHECKING:\n    import {imported}\n")
    result = lint(copy)
    assert result.returncode != 0, result.stdout
    assert "The client's rooms, one way BROKEN" in result.stdout, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("cachesvc_client.bundle.planted", "cryptography"),
        ("cachesvc_client.bundle.planted", "cachesvc_client.wire.digest"),
        ("cachesvc.domain.planted", "cachesvc_client.wire.digest"),
        ("cachesvc.index.planted", "sqlmodel"),
        ("cachesvc.warm.planted", "cachesvc_client.bundle"),
        ("cachesvc.bootstrap", "cachesvc.blobs.s3"),
    ],
)
def test_an_allowed_import_is_not_reported(copy, importer, imported):
    if imported.startswith("cachesvc"):
        plant(copy, imported, "")
    plant(copy, importer, f"\nimport {imported}\n")
    result = lint(copy)
    assert result.returncode == 0, result.stdout + result.stderr
