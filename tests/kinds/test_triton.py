"""Test that Triton's cache folder moves: its group files, and the libraries built with gcc.

A real Triton takes part if one is installed; compiling for a GPU needs no GPU."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachesvc_client.bundle.pack import PackReader, SourceFile, write_pack
from cachesvc_client.hooks import child_processes, counters
from cachesvc_client.kinds import KINDS, RULES
from cachesvc_client.kinds.folders import Folders
from cachesvc_client.kinds.kind import KindState
from cachesvc_client.kinds.testing import Example, KindConformance
from cachesvc_client.kinds.triton.key import settle_ptxas, walk_is_imported
from cachesvc_client.kinds.triton.kind import KIND, TritonState
from cachesvc_client.node.capture import capture
from cachesvc_client.node.install import install
from cachesvc_client.wire.compare import Compatible, Mismatch, compare
from cachesvc_client.wire.errors import Corrupt
from cachesvc_client.wire.manifest.records import Manifest, Statement, Workload
from cachesvc_client.wire.names import Namespace, ShortName, Target
from tests.releases import TRITON

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "triton-3.6-sm90.json").read_text())
KEY = GOLDEN["group_path"].split("/")[0]
NAMES = st.from_regex(r"[A-Za-z0-9_]{1,40}\.(cubin|json|ttir|source)", fullmatch=True)


LONG = "triton_poi_fused__scaled_dot_product_cudnn_attention__to_copy__unsafe_view_add_arange_bitwise_and_bmm"


class TestConformance(KindConformance):
    """Uses paths as Triton writes them on an H200."""

    kind = KIND
    examples = (
        Example(f"{KEY}/{LONG}.cubin", b"machine code"),
        Example(f"{KEY}/doubled.source", b"#loc"),
        Example(f"{KEY}/cuda_utils.cpython-312-x86_64-linux-gnu.so", b"\x7fELF"),
        Example(f"{KEY}/__triton_launcher.cpython-312-x86_64-linux-gnu.so", b"\x7fELF"),
        Example(f"{KEY}/_tuned_sum.autotune.json", b"{}"),
        Example(
            f"{KEY}/__grp__{LONG}.json",
            json.dumps({"child_paths": {f"{LONG}.cubin": f"{{root}}/{KEY}/{LONG}.cubin"}}).encode(),
            last=True,
        ),
    )
    others = (
        *(f"{KEY}/../x.json", f"../{KEY}/x.json", f"{KEY}/tmp.pid_1_2/x.json", f"{KEY}/lock"),
        *(f"{KEY}/x.py", f"{KEY}/.x.so", "x.json"),
    )

    def use(self, state: KindState, root: Path) -> set[str]:
        assert isinstance(state, TritonState)
        state._record_compiled(metadata_group={"doubled.source": str(root / KEY / "doubled.source")})
        return {example.path for example in self.examples}


def _builder(root: Path) -> Path:
    """Make a cache folder as Triton 3.6 leaves one. The contents of the files do not matter here."""
    (root / KEY).mkdir(parents=True)
    for path, size in GOLDEN["files"].items():
        (root / path).write_bytes(path.encode().ljust(size)[:size])
    group = json.dumps(GOLDEN["group"]).replace(GOLDEN["root"], str(root))
    (root / GOLDEN["group_path"]).write_text(group)
    (root / KEY / "lock").write_text("")
    return root


def pack_and_open(files: list[SourceFile], folder: Path) -> PackReader:
    path = folder / "pack"
    with open(path, "wb") as out:
        contents = write_pack(files, out)
    statement = Statement(Namespace("team"), ShortName("k"), Target("k"), 1_700_000_000_000)
    manifest = Manifest(statement, contents.pack, contents.frames, contents.files, {"torch": "2"}, Workload())
    return PackReader(path, manifest, 0)


def move_folder(source: Path, target: Path, folder: Path) -> list[SourceFile]:
    """Capture the builder's folder, remove it, and install the files elsewhere. Return the captured files."""
    files = capture({"triton": RULES["triton"].files_in(source)}, RULES, {"triton": source})
    shutil.rmtree(source)
    with pack_and_open(files, folder) as reader:
        install(reader, RULES, {"triton": target})
    return files


def test_a_folder_of_a_real_triton_moves(tmp_path: Path) -> None:
    builder = _builder(tmp_path / "builder")
    files = move_folder(builder, tmp_path / "service", tmp_path)
    assert {file.path for file in files} == set(GOLDEN["files"])
    group = json.loads((tmp_path / "service" / GOLDEN["group_path"]).read_text())
    assert group["child_paths"].keys() == GOLDEN["group"]["child_paths"].keys()
    assert all(Path(path).parent == tmp_path / "service" / KEY for path in group["child_paths"].values())
    assert all(Path(path).is_file() for path in group["child_paths"].values())


def test_no_path_of_the_builder_travels(tmp_path: Path) -> None:
    files = move_folder(_builder(tmp_path / "builder"), tmp_path / "service", tmp_path)
    assert all(str(tmp_path).encode() not in file.data for file in files if isinstance(file.data, bytes))


@given(st.lists(NAMES, max_size=5, unique=True), st.sampled_from(["/a", "/deep/er/place", "/"]))
def test_portable_and_local_are_inverse(names: list[str], root: str) -> None:
    rule = RULES["triton"].rule(GOLDEN["group_path"])
    assert rule is not None and rule.portable is not None and rule.local is not None
    place = Path(root)
    local = json.dumps({"child_paths": {name: str(place / KEY / name) for name in names}}).encode()
    portable = rule.portable(local, place)
    assert json.loads(rule.local(portable, place)) == json.loads(local)
    assert rule.portable(rule.local(portable, Path("/elsewhere")), Path("/elsewhere")) == portable


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"child_paths": 3}',
        b'{"child_paths": {"x": "/etc/passwd"}}',
        b'{"child_paths": {"x": "{cachesvc:triton}/../../etc/passwd"}}',
        b'{"child_paths": {"x": "{cachesvc:triton}/%s/../x.json"}}' % KEY.encode(),
        b'{"child_paths": {"x": 7}}',
    ],
)
def test_a_group_file_that_names_foreign_files_is_refused(tmp_path: Path, data: bytes) -> None:
    files = [SourceFile("triton", GOLDEN["group_path"], data)]
    with pack_and_open(files, tmp_path) as reader, pytest.raises(Corrupt, match="__grp__"):
        install(reader, RULES, {"triton": tmp_path / "service"})
    assert not (tmp_path / "service" / GOLDEN["group_path"]).exists()


def test_the_c_library_decides_for_an_entry_of_the_gpu() -> None:
    built = {"torch": "2.11.0+cu130", "gpu": "NVIDIA H200", "libc": "2.39"}
    older = compare({**built, "libc": "2.36"}, built, ("gpu",))
    assert isinstance(older, Mismatch) and "libc" in older.reason
    assert isinstance(compare({**built, "libc": "2.41"}, built, ("gpu",)), Compatible)


@pytest.mark.parametrize("ptxas", ["ptxas", "ptxas-blackwell"])
def test_a_call_of_ptxas_for_its_version_is_no_compilation(ptxas: str) -> None:
    program = f"/site/triton/bin/{ptxas}"
    name = child_processes.program_name(program, [program, "--version"])
    assert name == f"{program} --version"
    assert child_processes.program_name("/site/ptxas", ["/site/ptxas", "-v", "k.ptx"]) == "/site/ptxas"
    asked = child_processes.program_name(
        "/opt/gcc/bin/gcc", ["/opt/gcc/bin/gcc", "-x", "c++", "-fsyntax-only", os.devnull]
    )
    assert not counters.is_compiler(asked) and counters.is_compiler("/opt/gcc/bin/gcc")
    before = len(child_processes._programs)
    observer = counters.Observer()
    try:
        child_processes._programs.extend([name, "/usr/bin/gcc"])
        assert observer.snapshot().compiler_processes == 1
    finally:
        del child_processes._programs[before:]


@pytest.mark.parametrize("own", [None, "inductor", "both"])
def test_settings_that_the_user_left_open_are_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str | None
) -> None:
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, "")  # The fixture restores the variables that the test sets below.
        monkeypatch.delenv(name)
    mine = tmp_path / "mine"
    if own:
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(mine))
    if own == "both":
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "kernels"))
    calls = []
    folders = Folders(KINDS)
    folders.settle(lambda: calls.append(1) or tmp_path / "private")
    roots = folders.roots()
    assert roots["inductor"] == (mine if own else tmp_path / "private" / "inductor")
    assert roots["triton"] == (tmp_path / "kernels" if own == "both" else roots["inductor"] / "triton" / "0")
    assert (len(calls) == 1) is (own is None)
    assert os.environ["TRITON_CACHE_DIR"] == str(roots["triton"])


def test_a_private_folder_inherited_from_the_parent_process_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parents = tmp_path / "v1" / "folders" / ("0" * 64)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(parents / "inductor"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(parents / "inductor" / "triton" / "0"))
    monkeypatch.setenv("CUDA_CACHE_PATH", str(parents))
    folders = Folders(KINDS)
    assert folders.roots() == {} and not {"TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH"} & set(os.environ)
    folders.settle_early(lambda _: tmp_path / "driver")
    folders.settle(lambda: tmp_path / "private")
    assert not any(path.is_relative_to(parents) for path in folders.roots().values())
    folders.settle(lambda: tmp_path / "next")
    assert folders.roots()["triton"] == tmp_path / "next" / "inductor" / "triton" / "0"
    assert [roots["inductor"].parent.name for roots in folders.every_roots()] == ["next", "private"]


PROGRAM = """
import sys
from cachesvc_client.kinds.kind import ProcessCallbacks
from cachesvc_client.kinds.triton.kind import TritonState
from cachesvc_client.hooks import counters
recorded, waited = TritonState(), []
recorded.install_hooks(ProcessCallbacks(lambda: waited.append(1), lambda event: None))
observer = counters.start(audit=True)
import triton, triton.backends.nvidia.driver as driver
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
import kernel
kinds = {"x": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}
triton.compile(ASTSource(kernel.doubled, kinds, {"BLOCK": 128}), target=GPUTarget("cuda", 90, 32))
utils = driver.CudaUtils()
assert callable(utils.load_binary) and waited
seen = observer.snapshot()
of_torch = (seen.torch.triton_compilations, seen.torch.cpp_builds)
counted = (*of_torch, seen.compiler_processes, len(recorded.folders))
print(*counted, triton.autotune(configs=[triton.Config({"BLOCK": 1})], key=[])(kernel.doubled).cache_results)
print(driver.__file__)
"""
KERNEL = """
import triton, triton.language as tl
@triton.jit
def doubled(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)
"""


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed (make triton)"
)
def test_keys_hold_the_version_of_the_ptxas_that_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch names its own ptxas late. A process that computes a key earlier has another version in all its
    keys."""
    from torch._inductor.runtime import compile_tasks, triton_heuristics
    from triton.backends.nvidia.compiler import get_ptxas_version

    # From architecture 90 on, Triton 3.9 asks another program, which PyTorch does not name. Triton 3.4 and
    # 3.5 ask one program for all architectures.
    arch = [80] if inspect.signature(get_ptxas_version).parameters else []
    monkeypatch.setenv("TRITON_PTXAS_PATH", "")  # Triton keeps the value; the fixture restores it.
    monkeypatch.delenv("TRITON_PTXAS_PATH")
    before = get_ptxas_version(*arch)
    # Torch 2.11, and torch 2.13, which counts its folders wrongly.
    for place in ("torch/bin", "torch/_inductor/bin"):
        ptxas = tmp_path / place / "ptxas"
        ptxas.parent.mkdir(parents=True)
        ptxas.write_text("#!/bin/sh\necho Cuda compilation tools, release 13.0, V13.0.48\n")
        ptxas.chmod(0o755)
    monkeypatch.setattr(compile_tasks, "__file__", str(tmp_path / "torch/_inductor/runtime/compile_tasks.py"))
    settle_ptxas(triton_heuristics)
    assert get_ptxas_version(*arch) != before
    assert "V13.0.48" in get_ptxas_version(*arch)

    monkeypatch.setenv("TRITON_PTXAS_PATH", "/the/users/own")
    settle_ptxas(triton_heuristics)
    assert os.environ["TRITON_PTXAS_PATH"] == "/the/users/own"
    get_ptxas_version.cache_clear()


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed (make triton)"
)
def test_another_folder_and_an_image_without_programs_compile_nothing(tmp_path: Path) -> None:
    """The service has Triton in another virtual environment, libcuda elsewhere, and no program at all. The
    helper is the driver's own; it is built and loaded here, and run on a GPU in benchmarks/gpu alone."""
    for name, text in (("program.py", PROGRAM), ("kernel.py", KERNEL)):
        (tmp_path / name).write_text(text)
    for place in ("builder", "service"):
        copy_triton(tmp_path / f"site-{place}")
        build_libcuda(tmp_path / f"cuda-{place}")

    def count_programs(place: str, path: str) -> list[str]:
        env = {
            **os.environ,
            "TRITON_CACHE_DIR": str(tmp_path / place),
            "PATH": path,
            "PYTHONPATH": f"{tmp_path / f'site-{place}'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            "TRITON_LIBCUDA_PATH": str(tmp_path / f"cuda-{place}"),
            "LD_LIBRARY_PATH": str(tmp_path / f"cuda-{place}"),
        }
        env.pop("TRITON_CACHE_AUTOTUNING", None)
        program = [sys.executable, str(tmp_path / "program.py")]
        result = subprocess.run(program, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr[-3000:]
        assert str(tmp_path / f"site-{place}") in result.stdout
        return result.stdout.split()[:5]

    assert count_programs("builder", os.environ["PATH"])[:2] == ["1", "1"]
    # A second start on the builder finds what the first one kept.
    assert count_programs("builder", os.environ["PATH"])[:3] == ["0", "0", "0"]
    move_folder(tmp_path / "builder", tmp_path / "service", tmp_path)
    assert count_programs("service", "/nonexistent") == ["0", "0", "0", "2", "True"]
    assert KIND.folder.variable == "TRITON_CACHE_DIR"


TUNING = """
import json, os, sys, tempfile
from pathlib import Path
from cachesvc_client.kinds.kind import ProcessCallbacks, RestoredFacts
from cachesvc_client.kinds.triton.kind import TritonState
state, waited, root = TritonState(), [], Path(os.environ["TRITON_CACHE_DIR"])
state.use_folder(root)
state.install_hooks(ProcessCallbacks(lambda: waited.append(1), lambda event: None))
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
import kernel

class Driver:  # Stands for a GPU: timings depend on nothing but its architecture.
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
    get_benchmarker = staticmethod(lambda: lambda call, quantiles: measured.append(1) or [1.0, 1.0, 1.0])

measured, hook = [], (lambda arguments: None)
driver.set_active(Driver())

def tune(sizes, **more):
    configs = [triton.Config({"BLOCK": size}, **more) for size in sizes]
    tuner = triton.autotune(configs=configs, key=["n"])(kernel.doubled)
    tuner.nargs = {}
    before = len(measured)
    bench = lambda: (setattr(tuner, "configs_timings", {c: tuner._bench(config=c) for c in configs}))
    tuner.check_disk_cache((7,), configs, bench)
    return len(measured) - before

work = tune([16, 32]), tune([16, 32, 64], pre_hook=hook)
if sys.argv[1:] == ["elsewhere"]:  # as Helion does while it searches
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        driver_module = __import__("triton.backends.nvidia.driver", fromlist=["CudaUtils"])
        driver_module.CudaUtils()
        os.environ["TRITON_CACHE_DIR"] = str(root)
made = sorted(path for path, _ in state.made_files(root).items())
used, reasons = sorted(state.used_files(root)), list(state.explain(RestoredFacts({}, [{}])))
print(json.dumps({"measured": work, "waited": len(waited), "made": made, "used": used, "reasons": reasons}))
"""


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed (make triton)"
)
def test_timings_of_autotune_travel_and_a_kernel_that_is_tuned_again_is_named(tmp_path: Path) -> None:
    for name, text in (("program.py", TUNING), ("kernel.py", KERNEL)):
        (tmp_path / name).write_text(text)
    build_libcuda(tmp_path / "cuda")

    def run(place: str, *arguments: str) -> dict[str, list[object]]:
        env = {
            **{name: value for name, value in os.environ.items() if name != "TRITON_CACHE_AUTOTUNING"},
            "TRITON_CACHE_DIR": str(tmp_path / place),
            "TRITON_LIBCUDA_PATH": str(tmp_path / "cuda"),
            "LD_LIBRARY_PATH": str(tmp_path / "cuda"),
        }
        program = [sys.executable, str(tmp_path / "program.py"), *arguments]
        result = subprocess.run(program, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr[-3000:]
        answer: dict[str, list[object]] = json.loads(result.stdout)
        return answer

    built = run("builder", "elsewhere")
    assert built["measured"] == [2, 3] and built["waited"]
    [library] = [path for path in built["made"] if str(path).endswith(".so")]
    [timings] = [path for path in built["made"] if str(path).endswith(".autotune.json")]
    assert "cuda_utils" in str(library) and (tmp_path / "builder" / str(library)).is_file()
    move_folder(tmp_path / "builder", tmp_path / "service", tmp_path)
    again = run("service")
    assert again["measured"] == [0, 3] and again["used"] == [timings] and again["made"] == []
    [reason] = again["reasons"]
    assert reason == (
        "triton.autotune tuned doubled here: Triton keeps no timings of a kernel with a hook in a "
        "configuration, or without a tuning key"
    )
    assert any("no restored timings" in str(reason) for reason in run("empty")["reasons"])


def copy_triton(site: Path) -> None:
    """Install Triton in another place: the files are links, which Python does not resolve."""
    [installed] = importlib.util.find_spec("triton").submodule_search_locations
    shutil.copytree(installed, site / "triton", copy_function=link_or_copy, ignore=lambda *_: {"__pycache__"})


def link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy(source, target)


def build_libcuda(folder: Path) -> None:
    """Build a libcuda that has every function which the driver's helper names; none of them does anything."""
    [installed] = importlib.util.find_spec("triton").submodule_search_locations
    source = Path(installed, "backends/nvidia/driver.c").read_text()
    folder.mkdir()
    names = sorted(set(re.findall(r"\b(cu[A-Z]\w+)\(", source)))
    (folder / "cuda.c").write_text("\n".join(f"int {name}(void) {{ return 100; }}" for name in names))
    command = ["gcc", "-shared", "-fPIC", "-w", "-o", str(folder / "libcuda.so.1"), str(folder / "cuda.c")]
    subprocess.run(command, check=True)
    (folder / "libcuda.so").symlink_to("libcuda.so.1")  # the name that Triton 3.4 links with


KEY_PROGRAM = """
import sys, threading
from cachesvc_client.kinds.triton.key import TritonKey
TritonKey().install_hooks()
import triton
from triton.runtime.autotuner import triton_key
ahead = [thread for thread in threading.enumerate() if thread.name == "cachesvc-triton-key"]
imported = set(sys.modules)
[thread.join() for thread in ahead]
known = triton_key.__wrapped__
print(len(ahead), known.cache_info().misses, triton_key() == known.__wrapped__(), set(sys.modules) - imported)
"""


@pytest.mark.skipif(TRITON < (3, 5), reason="Triton is not installed (make triton), or has the key elsewhere")
def test_tritons_key_is_computed_ahead_once_and_is_unchanged() -> None:
    result = subprocess.run([sys.executable, "-c", KEY_PROGRAM], capture_output=True, text=True, check=False)
    assert result.stdout.split("\n")[0] == "1 1 True set()", result.stdout + result.stderr


def test_a_walk_that_would_import_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("walked", "walked/compiler", "walked/compiler/deep", "walked/other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("walked")

    def imported(part: str) -> bool:
        return walk_is_imported(f"walked.{part}")

    assert not imported("compiler")
    importlib.import_module("walked.compiler")
    assert not imported("compiler")
    importlib.import_module("walked.compiler.deep")
    assert imported("compiler") and not imported("other")
    for name in [name for name in sys.modules if name.startswith("walked")]:
        monkeypatch.delitem(sys.modules, name)
