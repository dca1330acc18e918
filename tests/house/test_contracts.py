"""Test that each import contract finds a planted wrong import, and that the code keeps all contracts."""

import os
import re
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
        "cachesvc_client.restore.install",
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
    ("The server's rooms, one way", "cachesvc.ui.planted", "cachesvc.api.planted"),
    ("The server's rooms, one way", "cachesvc.oci.planted", "cachesvc.blobs.planted"),
    ("The server's rooms, one way", "cachesvc.console.planted", "cachesvc.warm.planted"),
    ("The server's rooms, one way", "cachesvc.agent.planted", "cachesvc.cli.planted"),
    ("Bundle, node and wire: no network, no compiler", "cachesvc_client.bundle.planted", "http.client"),
    ("Bundle, node and wire: no network, no compiler", "cachesvc_client.node.planted", "socket"),
    ("Bundle, node and wire: no network, no compiler", "cachesvc_client.node.planted", "torch"),
    (
        "The server's pure rules import wire and nothing else of the client",
        "cachesvc.domain.planted",
        "cachesvc_client.bundle",
    ),
    ("Warm stands on the client alone", "cachesvc.warm.planted", "cachesvc.registry.planted"),
    ("The builder's rooms, one way", "cachesvc.warm.spec.planted", "cachesvc.warm.worker.planted"),
    ("The builder's rooms, one way", "cachesvc.warm.worker.planted", "cachesvc.warm.launcher"),
    ("The builder's rooms, one way", "cachesvc.warm.verdict.planted", "cachesvc.warm.report.planted"),
    ("The builder's rooms, one way", "cachesvc.warm.room_without_a_place", "json"),
    ("The web page is known to the application's factory alone", "cachesvc.api.planted", "cachesvc.ui"),
    ("Concrete backends are named in bootstrap alone", "cachesvc.api.planted", "cachesvc.hot.redis"),
    ("Concrete backends are named in bootstrap alone", "cachesvc.registry.planted", "cachesvc.index.engine"),
    ("Stores are entry points, and no module names one", "cachesvc.registry.planted", "cachesvc.blobs.s3"),
    ("Stores are entry points, and no module names one", "cachesvc.bootstrap", "cachesvc.blobs.local"),
    ("Stores are entry points, and no module names one", "cachesvc.cli.planted", "cachesvc.blobs.oci"),
    ("Each room's packages from outside", "cachesvc_client.wire.planted", "zstandard"),
    ("Each room's packages from outside", "cachesvc_client.planted", "requests"),
    ("Each room's packages from outside", "cachesvc_client.http.registry", "torch"),
    ("Each room's packages from outside", "cachesvc.domain.planted", "pydantic"),
    ("Each room's packages from outside", "cachesvc.oci.planted", "cryptography"),
    ("Each room's packages from outside", "cachesvc.registry.planted", "sqlmodel"),
    ("Each room's packages from outside", "cachesvc.index.planted", "boto3"),
    ("Each room's packages from outside", "cachesvc.api.planted", "redis"),
    ("Each room's packages from outside", "cachesvc.ui.planted", "sqlmodel"),
    ("Each room's packages from outside", "cachesvc.registry.planted", "fastapi"),
]


def copied(folder):
    """Copy the two packages and the contracts into a folder of their own."""
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "cachesvc", folder / "cachesvc", ignore=skip)
    shutil.copytree(ROOT / "client" / "cachesvc_client", folder / "cachesvc_client", ignore=skip)
    shutil.copytree(ROOT / "tools", folder / "tools", ignore=skip)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


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


ALLOWED = [
    ("cachesvc_client.bundle.planted", "cryptography"),
    ("cachesvc_client.bundle.planted", "cachesvc_client.wire.digest"),
    ("cachesvc.domain.planted", "cachesvc_client.wire.digest"),
    ("cachesvc.index.planted", "sqlmodel"),
    ("cachesvc.warm.spec.planted", "cachesvc_client.bundle"),
    ("cachesvc.bootstrap", "cachesvc.hot.redis"),
    ("cachesvc.ui.planted", "cachesvc.registry.names"),
    ("cachesvc.ui.planted", "jinja2"),
]
FOR_TYPE_CHECKERS = [
    ("cachesvc_client.restore.session_restore", "cachesvc_client.session.session"),
    ("cachesvc_client.outcome.report", "cachesvc_client.session.session"),
    ("cachesvc_client.canary.withdraw", "cachesvc_client.session.session"),
    ("cachesvc_client.own_results.keep", "cachesvc_client.session.session"),
    ("cachesvc_client.ranks.agreement", "cachesvc_client.session.session"),
    ("cachesvc_client.node.trust_scope", "cachesvc_client.config.settings"),
]


def plant_imports(folder, imports, text="\nimport {}\n"):
    for importer, imported in imports:
        if imported.startswith("cachesvc"):
            plant(folder, imported, "")
        plant(folder, importer, text.format(imported))


def sections(result):
    """Return what was printed of each broken contract, by its name."""
    texts = {}
    for name in CONTRACTS:
        _, _, text = result.stdout.partition(f"\n{name}\n{'-' * len(name)}\n")
        texts[name] = re.split(r"\n---+\n", text)[0]
    return texts


def names_import(text, importer, imported):
    package = imported if imported.startswith("cachesvc") else imported.partition(".")[0]
    lines = (f"- {importer}", f"{importer} -> {package}", f"{importer} may not import {package}")
    printed = [" ".join(line.partition(" (l.")[0].split()).removeprefix("- ") for line in text.splitlines()]
    return any(line.removeprefix("- ") in printed for line in lines)


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """Plant all wrong imports at once, and return what was printed of each contract."""
    folder = copied(tmp_path_factory.mktemp("broken"))
    plant_imports(folder, [(importer, imported) for _, importer, imported in PLANTS])
    result = lint(folder)
    assert result.returncode != 0, result.stdout
    return sections(result)


@pytest.fixture(scope="module")
def broken_for_type_checkers(tmp_path_factory):
    folder = copied(tmp_path_factory.mktemp("types"))
    plant_imports(folder, FOR_TYPE_CHECKERS, "\nif TYPE_CHECKING:\n    import {}\n")
    return sections(lint(folder))["The client's rooms, one way"]


def test_every_contract_has_a_plant():
    assert {contract for contract, _, _ in PLANTS} == set(CONTRACTS)


@pytest.mark.parametrize(("contract", "importer", "imported"), PLANTS)
def test_a_wrong_import_is_found(broken, contract, importer, imported):
    assert names_import(broken[contract], importer, imported), broken[contract]


@pytest.mark.parametrize(("importer", "imported"), FOR_TYPE_CHECKERS)
def test_a_wrong_import_for_type_checkers_is_found(broken_for_type_checkers, importer, imported):
    assert names_import(broken_for_type_checkers, importer, imported), broken_for_type_checkers


def test_all_contracts_are_kept_with_imports_that_are_allowed(tmp_path):
    folder = copied(tmp_path)
    plant_imports(folder, ALLOWED)
    result = lint(folder)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{len(CONTRACTS)} kept, 0 broken" in result.stdout
