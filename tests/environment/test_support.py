"""Test what may be restored on which torch: by the text of its version, and by its sources."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.environment import releases
from cachesvc_client.environment.support import check_proof, present_names
from cachesvc_client.hooks import source
from cachesvc_client.process.every_hook import every_hook, support_of
from cachesvc_client.publication.build_bundle import Build, Draft, build_bundle
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import Incompatible
from cachesvc_client.wire.factors import Fingerprint
from cachesvc_client.wire.manifest.proof import Proof
from cachesvc_client.wire.manifest.records import Manifest, Workload
from cachesvc_client.wire.names import Name, Target
from tests.made_torch import INSTALLED, make_torch

LINUX: Fingerprint = {"platform": "linux-x86_64"}
GPU: Fingerprint = {**LINUX, "gpu": "NVIDIA H200"}
UNKNOWN: Fingerprint = {**LINUX, "torch": "9.9.0"}
WHOLE = support_of(UNKNOWN).state == "by proof"
"""Whether this torch has every name that an unknown torch must have: torch 2.8 lacks one."""
on_whole_sources = pytest.mark.skipif(
    not WHOLE, reason="a name is missing here, so no unknown torch is usable"
)


@pytest.mark.parametrize(
    ("version", "state"),
    [
        *((f"{row.cpu}", "supported") for row in releases.TESTED),
        ("2.13.1+cpu", "supported"),
        ("2.11.0+cu130", "supported"),
        ("2.13.0.post1", "supported"),
        ("2.16.0", "by proof"),
        ("2.16.0.dev20261101+cpu", "by proof"),
        ("2.15.0.dev20260801+cpu", "by proof"),  # a nightly before 2.15.0
        ("2.15.0rc1", "by proof"),
        ("2.16.0a0+gitabc", "by proof"),  # from source
        ("2.13.0a0+git1a2b3c4", "by proof"),
        ("2.11.0a0+145a3a7bda.nv25.10", "by proof"),  # a fork
        ("2.13.0+acme.5", "by proof"),
        ("2.13.0+rocm7.0", "by proof"),
        ("2.7.1", "not usable"),
        ("2.7.0a0+gitabc", "not usable"),
        ("1.13.1+cu117", "not usable"),
        ("main", "not usable"),
        ("2.x", "not usable"),
        ("v2", "not usable"),
        ("", "not usable"),
    ],
)
def test_the_text_of_a_version_decides_on_a_cpu(version: str, state: str) -> None:
    if state == "by proof" and not WHOLE:
        state = "not usable"
    support = support_of({**LINUX, "torch": version})
    assert support.state == state, support.line
    assert "\n" not in support.line
    assert not WHOLE or (releases.refusal(version) is None) == (state != "not usable")


@pytest.mark.parametrize(
    ("torch", "triton", "state", "line"),
    [
        ("2.11.0+cu130", "3.6.0", "supported", "torch 2.11.0+cu130 with triton 3.6.0 on a GPU is supported"),
        ("2.11.0+cu130", "3.5.1", "not usable", "is missing in torch 2.11.0+cu130 with triton 3.5.1"),
        ("2.13.0+cu130", "3.7.1", "not usable", "is missing in torch 2.13.0+cu130 with triton 3.7.1"),
        ("2.11.0+cu130", None, "not usable", "is missing in torch 2.11.0+cu130 with triton (none)"),
        (
            "2.8.0+cu128",
            "3.4.0",
            "not usable",
            "triton 3.4.0 is older than 3.5, which a GPU needs",
        ),
    ],
)
def test_on_a_gpu_the_pair_with_triton_decides(
    torch: str, triton: str | None, state: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = releases.package
    monkeypatch.setattr(releases, "package", lambda name: None if name == "triton" else real(name))
    support = support_of({**GPU, "torch": torch, **({"triton": triton} if triton else {})})
    assert (support.state, line in support.line) == (state, True), support.line


def test_without_torch_or_on_another_system_nothing_is_usable() -> None:
    assert support_of(LINUX).line == "torch is not installed"
    assert "Linux" in support_of({"platform": "darwin-arm64", "torch": "2.13.0"}).line
    assert releases.refusal(None) == "torch is not installed"


def test_a_line_holds_no_character_that_a_terminal_obeys() -> None:
    for version in ("\x1b[31mx", "2.6\x1b[31m", "9.9\x1b[31m"):
        assert support_of({**LINUX, "torch": version}).line.isprintable()


# Sources ----------------------------------------------------------------------------------------

REMOVED = [
    ("_inductor/compile_fx.py", "def compile_fx(", "compile_fx.compile_fx"),
    ("_inductor/codecache.py", "class FxGraphHashDetails", "FxGraphHashDetails.__init__"),
    ("library.py", "    def impl(", "library.Library.impl"),
    ("_inductor/cpp_builder.py", "    def build(self", "CppBuilder.build"),
]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch):
    """Return a function that makes the package in a folder the installed torch."""

    def use(folder: Path) -> None:
        real = releases.package
        monkeypatch.setattr(releases, "package", lambda name: folder if name == "torch" else real(name))

    return use


@pytest.mark.parametrize(("path", "text", "hook"), REMOVED, ids=[row[2] for row in REMOVED])
def test_a_torch_without_a_needed_hook_is_not_usable(
    installed, tmp_path: Path, path: str, text: str, hook: str
) -> None:
    name = text.split("(")[0].split()[-1]
    installed(make_torch(tmp_path, "9.9.0", {path: (text, text.replace(name, f"Renamed{name}"))}))
    support = support_of(UNKNOWN)
    assert support.state == "not usable"
    assert support.line.startswith("not usable: hook torch.") and f"{hook} is missing in torch 9.9.0" in (
        support.line
    )


def test_a_moved_function_counts_only_where_that_is_certain(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    (folder / "inner").mkdir(parents=True)
    (folder / "__init__.py").write_text(
        "from .inner.deep import function, Class as Moved\nfrom os import path\n"
    )
    (folder / "inner" / "__init__.py").write_text("from .deep import *\nfrom .. import Moved\nvalue = 1\n")
    (folder / "inner" / "deep.py").write_text(
        "from .gone import lost\n"
        "def function(): ...\n"
        "class Base:\n    def inherited(self): ...\n"
        "class Class(Base):\n    def own(self): ...\n"
        "    text = '''\nat the margin\n'''\n    def late(self): ...\n"
        "made = Class()\n"
    )
    there = ["made function", "made Moved.own", "made.inner Moved.own", "made.inner.deep Class.late"]
    there += ["made.inner value", "made.inner.deep made.inherited"]
    doubts = [
        "made path",
        "made.inner function",
        "made.inner.deep lost",
        "made Moved.inherited",
        "made.none x",
    ]
    for text in there + doubts:
        module, path = text.split()
        assert source.defines(folder, module, path) == (text in there), text


def test_the_sources_have_what_the_hooks_find() -> None:
    """A name that the sources have and a hook does not find would let a false proof through."""
    import importlib

    rows = [hook for hook in every_hook() if hook.path and hook.module.startswith("torch.")]
    present = present_names(rows, UNKNOWN)
    for hook in rows:
        owner = hook.owner(importlib.import_module(hook.module))
        own = owner is not None and hook.path.rpartition(".")[2] in vars(owner)
        if hook.expected_in("9.9"):
            assert own == (hook.name in present), hook.name


@on_whole_sources
def test_sources_are_read_in_little_time_and_only_for_an_unknown_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads: list[Path] = []
    real = source._text.__wrapped__
    monkeypatch.setattr(source, "_text", lambda path: reads.append(path) or real(path))
    parsed: list[Path] = []
    monkeypatch.setattr(source, "_tree", lambda path: parsed.append(path))
    assert support_of({**LINUX, "torch": "2.13.0"}).state == "supported"
    assert reads == []
    begin = time.process_time()
    assert support_of(UNKNOWN).state == "by proof"
    assert reads and parsed == [], "no file of the installed torch has to be parsed"
    assert time.process_time() - begin < 1.0  # 20 ms on a quiet machine


# Proofs -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Return the manifest of an entry for an unknown torch, with a proof that counts."""
    needed = support_of(UNKNOWN).needs({"inductor"})
    draft = Draft(
        name=Name.parse("team/x"),
        target=Target("x"),
        fingerprint=UNKNOWN,
        workload=Workload(script=Digest.of(b"x")),
        scopes=("host",),
        build=Build(proof=Proof("9.9.0", needed)),
    )
    path = "fxgraph/ab/f" + "a" * 30 + "/" + "b" * 30
    files = [SourceFile("inductor", path, b"graph", 0o644)]
    return build_bundle(files, draft, SigningKey.generate(), tmp_path_factory.mktemp("b") / "b.cachesvc")


def refusal(manifest: Manifest, here: Fingerprint = UNKNOWN) -> str:
    try:
        check_proof(manifest, support_of(here), here)
    except Incompatible as error:
        assert error.hint
        return error.message
    return ""


@on_whole_sources
def test_an_entry_counts_with_a_proof_of_this_very_torch(manifest: Manifest) -> None:
    proof = manifest.proof
    assert proof is not None and INSTALLED.name == "torch"
    assert refusal(manifest) == ""
    for changed, says in (
        (None, "not proven on torch 9.9.0: its manifest has no proof"),
        (replace(proof, torch="9.9.0+cpu"), "proven on torch 9.9.0+cpu, and here is 9.9.0"),
        (replace(proof, hooks=(*proof.hooks, "torch.gone")), "not usable: hook torch.gone is missing"),
        (replace(proof, hooks=proof.hooks[1:]), f"its proof does not name hook {proof.hooks[0]}"),
        (replace(proof, probe="acme/1"), "its proof is of acme/1, which this client does not know"),
    ):
        assert says in refusal(replace(manifest, proof=changed)), says
    assert refusal(replace(manifest, proof=replace(proof, probe="cachesvc.conformance/7"))) == ""
    assert refusal(replace(manifest, proof=replace(proof, triton="3.1"))) == "", "it holds no code for a GPU"
    assert "with triton 3.1" in refusal(
        replace(manifest, scopes=("gpu",), proof=replace(proof, triton="3.1"))
    )


@on_whole_sources
def test_an_entry_for_the_cpu_needs_no_hook_of_gpus(manifest: Manifest) -> None:
    """Its builder had no GPU, so its proof names none of those hooks; the host that restores it has a GPU."""
    support = support_of(UNKNOWN)
    of_gpu = "triton.of_gpu"
    on_gpu = replace(
        support,
        general=(*support.general, of_gpu),
        of_gpu=frozenset({of_gpu}),
        present=support.present | {of_gpu},
    )
    check_proof(manifest, on_gpu, UNKNOWN)
    with pytest.raises(Incompatible, match=f"its proof does not name hook {of_gpu}"):
        check_proof(replace(manifest, scopes=("gpu",)), on_gpu, UNKNOWN)


def test_on_a_torch_that_is_not_usable_no_proof_counts(manifest: Manifest) -> None:
    assert "not usable: torch 2.7.1 is older" in refusal(manifest, {**LINUX, "torch": "2.7.1"})


def test_a_supported_torch_needs_no_proof(manifest: Manifest) -> None:
    assert refusal(replace(manifest, proof=None), {**LINUX, "torch": "2.13.0"}) == ""


@pytest.mark.parametrize(
    "changes",
    [
        {"torch": ""},
        {"torch": "1" * 121},
        {"torch": "9\n9"},
        {"hooks": ("a b",)},
        {"hooks": ("a",) * 201},
        {"probe": "\x1b"},
    ],
)
def test_a_malformed_proof_cannot_exist(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"proof\."):
        replace(Proof("9.9.0", ("torch.x",)), **changes)
