"""Whoever signs for a lane fills the folders of a kind with files that the kind does not have."""

from __future__ import annotations

import importlib
import json
import os
import stat
from pathlib import Path, PurePosixPath

import pytest
from packing import make_pack

from cachesvc_client.bundle.pack import PackReader, SourceFile
from cachesvc_client.kinds import own_kinds
from cachesvc_client.kinds.testing import Example, KindConformance
from cachesvc_client.node.capture import capture
from cachesvc_client.node.install import install
from cachesvc_client.wire.errors import CacheSvcError, Corrupt

RULES = {kind.name: kind.rules for kind in own_kinds()}
"""Those of every kind of ours, also of the kinds that are off."""


def examples() -> dict[str, tuple[Example, ...]]:
    """Return by kind the files that its compiler leaves, of the conformance suite."""
    modules = [importlib.import_module(f"tests.kinds.test_{kind}") for kind in RULES]
    suites = [module.TestConformance for module in modules]
    assert all(issubclass(suite, KindConformance) for suite in suites)
    return {suite.kind.name: suite.examples for suite in suites}


EXAMPLES = examples()
PLANTED = (
    "sitecustomize.py",
    "computation_graph.py",
    "vllm_compile_cache.py",
    "cache_key_factors.json.py",
    "model.py",
    "model.pkl",
    "kernel.cubin.py",
    "kernel.so.1",
    "kernel.so.tmp.pid_1_2",
    "kernel.pyc",
    "kernel.PTX",
    "kernel.o",
    "kernel.a",
    "lib/libcuda.so.1",
    "libcuda.so.1",
    "ld.so.conf",
    "build.ninja",
    "Makefile",
    "CMakeLists.txt",
    "__pycache__/kernel.cpython-311.pyc",
    "kernel.sh",
    "nvcc",
    "params.pkl",
)
"""Names beside the files of a kind that a compiler, a loader or a build tool would take for its own."""


def hostile(kind: str, path: str, folder: Path, content: bytes = b"hostile", mode: int = 0o644) -> PackReader:
    """Return a pack with one file, as a signer of a lane makes it."""
    folder.mkdir(parents=True, exist_ok=True)
    return PackReader(*make_pack(folder, [SourceFile(kind, path, content, mode)]))


def files_below(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if not path.is_dir() or path.is_symlink()]


def portable(kind: str, example: Example) -> bytes:
    """Return the content of an example as it travels."""
    rule, root = RULES[kind].rule(example.path), Path("/root-of-the-builder")
    assert rule is not None
    data = example.content.replace(b"{root}", str(root).encode())
    return rule.portable(data, root) if rule.portable else data


@pytest.fixture(params=sorted(EXAMPLES))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_file_that_the_kind_does_not_have_is_put_beside_its_files(kind: str, tmp_path: Path) -> None:
    """In every folder of the kind, and in one of its own there."""
    folders = {str(parent) for one in EXAMPLES[kind] for parent in PurePosixPath(one.path).parents}
    paths = [f"{folder}/{name}".removeprefix("./") for folder in sorted(folders) for name in PLANTED]
    for number, path in enumerate(paths):
        root = tmp_path / str(number) / "root"
        with (
            hostile(kind, path, tmp_path / str(number)) as reader,
            pytest.raises(Corrupt, match="no file that this kind has"),
        ):
            install(reader, RULES, {kind: root})
        assert not root.exists() or files_below(root) == [], path


def test_a_file_of_another_kind_is_put_into_the_folder(kind: str, tmp_path: Path) -> None:
    """Kinds lie inside of each other: a path of the inner one is none of the outer one's."""
    tried = 0
    for other, files in EXAMPLES.items():
        for one in files:
            for path in (one.path, f"{other}/{one.path}", f"{other}/0/{one.path}"):
                if other == kind or RULES[kind].rule(path) is not None:
                    continue
                tried += 1
                root = tmp_path / f"root-{tried}"
                with (
                    hostile(kind, path, tmp_path / str(tried)) as reader,
                    pytest.raises(Corrupt, match="no file that this kind has"),
                ):
                    install(reader, RULES, {kind: root})
                assert not root.exists() or files_below(root) == [], path
    assert tried > 10


def test_one_unknown_file_keeps_out_the_known_ones(kind: str, tmp_path: Path) -> None:
    """Nothing of such a revision is installed, not even what the kind has."""
    known = [SourceFile(kind, one.path, portable(kind, one)) for one in EXAMPLES[kind]]
    beside = str(PurePosixPath(EXAMPLES[kind][0].path).parent / "sitecustomize.py")
    root = tmp_path / "root"
    files = [*known, SourceFile(kind, beside, b"hostile")]
    with (
        PackReader(*make_pack(tmp_path, files)) as reader,
        pytest.raises(Corrupt, match="no file that this kind has"),
    ):
        install(reader, RULES, {kind: root})
    assert not root.exists() or files_below(root) == []


def test_a_file_that_no_loader_opens_is_executable(kind: str, tmp_path: Path) -> None:
    for number, one in enumerate(EXAMPLES[kind]):
        root = tmp_path / f"root-{number}"
        with hostile(kind, one.path, tmp_path / str(number), portable(kind, one), 0o755) as reader:
            install(reader, RULES, {kind: root})
        mode = (root / one.path).stat().st_mode
        assert bool(mode & 0o111) == one.path.endswith(".so"), one.path
        assert not mode & (stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX | 0o022), one.path


@pytest.mark.parametrize("where", ["file", "folder"])
def test_a_link_lies_where_a_file_of_the_kind_belongs(kind: str, tmp_path: Path, where: str) -> None:
    """Whoever has planted it: nothing is written through it, and nothing that it leads to is published."""
    for number, one in enumerate(EXAMPLES[kind]):
        root, outside = tmp_path / f"root-{number}", tmp_path / f"outside-{number}"
        outside.mkdir()
        secret = outside / PurePosixPath(one.path).name
        secret.write_bytes(b"{}")
        target = root / one.path
        if where == "file":
            target.parent.mkdir(parents=True)
            target.symlink_to(secret)
        else:
            target.parent.parent.mkdir(parents=True, exist_ok=True)
            if target.parent == root:
                continue  # the root itself may be a link of the user's
            target.parent.symlink_to(outside)
        assert capture({kind: [one.path]}, RULES, {kind: root}) == []
        with hostile(kind, one.path, tmp_path / str(number), portable(kind, one)) as reader:
            try:
                install(reader, RULES, {kind: root})
            except CacheSvcError:
                pass
            else:
                assert target.is_file() and not target.is_symlink()
        assert secret.read_bytes() == b"{}" and os.listdir(outside) == [secret.name]


def test_a_group_file_of_triton_names_files_of_another_kind(tmp_path: Path) -> None:
    """Triton opens what a group file names: no path of another kind's folder passes, known there or not."""
    group = next(one.path for one in EXAMPLES["triton"] if "__grp__" in one.path)
    tried = 0
    for other, files in EXAMPLES.items():
        for one in files:
            path = one.path if other != "triton" else f"../{one.path}"
            for written in (f"{{cachesvc:triton}}/{path}", f"/{path}", f"{{cachesvc:{other}}}/{path}"):
                if RULES["triton"].rule(path) is not None:
                    continue
                tried += 1
                content = json.dumps({"child_paths": {"kernel.cubin": written}}).encode()
                root = tmp_path / f"root-{tried}"
                packed = hostile("triton", group, tmp_path / str(tried), content)
                with packed as reader, pytest.raises(Corrupt):
                    install(reader, RULES, {"triton": root})
                assert not (root / group).exists()
    assert tried > 10
