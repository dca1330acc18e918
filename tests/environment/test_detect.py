"""Tests ``detect`` on this machine against the answers of PyTorch and the compilers, and for other machines
by text."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import cachesvc_client
from cachesvc_client.environment import cxx
from cachesvc_client.environment.cpu import cpu_isa
from cachesvc_client.environment.detect import detect, supported
from cachesvc_client.environment.gpu import visible_devices
from cachesvc_client.environment.settings import settings
from cachesvc_client.wire.compare import compare
from cachesvc_client.wire.factors import BY_NAME

HERE = {name: value for name, value in os.environ.items() if name not in ("ATEN_CPU_CAPABILITY", "CXX")}
SKYLAKE = frozenset("avx2 avx512f avx512bw avx512dq avx512vl fma f16c".split())
ICELAKE = SKYLAKE | {"avx512_vnni"}
SAPPHIRE = ICELAKE | {"avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"}

ASK_TORCH = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
import torch
from torch._inductor import cpu_vec_isa, config
config.cpp.vec_isa_ok = True  # the probes compile for seconds; what they would refuse is tested elsewhere
cpu_vec_isa.VecISA.check_build = lambda self, code: True
isas = {}
for value in (None, "avx2", "avx512", "default", "zvector", "nonsense"):
    os.environ.pop("ATEN_CPU_CAPABILITY", None)
    if value is not None:
        os.environ["ATEN_CPU_CAPABILITY"] = value
    isa = cpu_vec_isa.pick_vec_isa()
    flags = isa.build_arch_flags()
    extra = " avx512_bf16" * ("-mavx512bf16" in flags) + " amx_fp16" * ("-mamx-fp16" in flags)
    isas[str(value)] = str(isa) + extra
del os.environ["ATEN_CPU_CAPABILITY"]
from cachesvc_client.environment.detect import detect
print(json.dumps({
    "torch": torch.__version__, "cuda": torch.version.cuda, "threads": torch.get_num_threads(), "isas": isas,
    "ours": detect(), "capability": torch.backends.cpu.get_cpu_capability(),
}))
"""


@pytest.fixture(scope="module")
def torch_says():
    if importlib.util.find_spec("torch") is None:  # not imported here: others ask about its absence
        pytest.skip("no torch here")
    done = subprocess.run(
        [sys.executable, "-c", ASK_TORCH], env=HERE, capture_output=True, text=True, check=True, timeout=120
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_versions_are_those_of_torch(torch_says):
    facts = detect()
    assert facts["torch"] == torch_says["torch"]
    assert facts.get("cuda") == torch_says["cuda"]


@pytest.mark.parametrize("value", ["None", "avx2", "avx512", "default", "zvector", "nonsense"])
def test_the_isa_is_what_inductor_picks(torch_says, value):
    environ = {} if value == "None" else {"ATEN_CPU_CAPABILITY": value}
    assert detect(environ)["cpu_isa"] == torch_says["isas"][value]


def test_threads_are_torchs_once_it_is_imported(torch_says):
    assert torch_says["ours"]["threads"] == torch_says["threads"]


def test_nothing_is_imported_started_or_printed():
    """Watches audit events, which see every process; to import ``torch`` or to ask NVML costs hundreds of
    milliseconds."""
    program = """
import sys
seen = []
starts = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "os.system")
sys.addaudithook(lambda event, _: seen.append(event) if event in starts else None)
from cachesvc_client.environment.detect import detect
detect()
print(seen, sorted({"torch", "triton", "importlib.metadata", "subprocess", "ctypes"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-S", "-c", path_of_this_process() + program], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("[] []\n", "")


def path_of_this_process() -> str:
    """Returns program text that sets the path of imports: the child runs without ``site``, which would find
    an editable install."""
    client = str(Path(cachesvc_client.__file__).parent.parent)
    return f"import sys; sys.path[:] = {[client, *sys.path]!r}\n"


def test_all_names_are_in_the_table_and_values_have_their_types():
    facts = detect({"OMP_NUM_THREADS": "4", "CI": "1", "PATH": os.environ["PATH"]})
    assert set(facts) <= {*BY_NAME, "schema"}
    for value in facts.values():
        assert isinstance(value, (str, int)) or all(isinstance(item, str) for item in value)
    assert facts["python_abi"] == sys.implementation.cache_tag + sys.abiflags
    assert facts["settings"] == ["CI=1"]


def test_without_torch_there_is_no_version(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(sys, "meta_path", [])
    facts = detect({})
    assert "torch" not in facts
    assert "triton" not in facts
    assert supported(facts, untested=True) == "torch is not installed"


def test_versions_are_read_as_text(tmp_path, monkeypatch):
    """As a PyPI wheel has them: its metadata says 2.11.0. Importing it would raise."""
    write(tmp_path / "torch/__init__.py", "raise RuntimeError('imported')")
    write(
        tmp_path / "torch/version.py",
        "__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n",
    )
    write(
        tmp_path / "triton/__init__.py",
        '"""isort:skip_file"""\n__version__ = "3.6.0"\nraise RuntimeError("imported")\n',
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    facts = detect({"CUDA_VISIBLE_DEVICES": ""})
    assert (facts["torch"], facts["cuda"], facts["triton"]) == ("2.11.0+cu130", "13.0", "3.6.0")
    write(
        tmp_path / "torch/version.py",
        "__version__ = '2.11.0+rocm6.4'\ncuda: Optional[str] = None\nhip: Optional[str] = '6.4.1'\n",
    )
    assert detect({"CUDA_VISIBLE_DEVICES": ""})["cuda"] == "rocm 6.4.1"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("flags", "capability", "isa"),
    [
        (SAPPHIRE, None, "avx512 avx512_vnni amx_tile avx512_bf16"),
        (SAPPHIRE | {"amx_fp16"}, "avx512", "avx512 avx512_vnni amx_tile avx512_bf16 amx_fp16"),
        (SAPPHIRE, "avx2", "avx2"),
        (ICELAKE | {"avx512_bf16"}, None, "avx512 avx512_vnni"),
        (SKYLAKE | {"avx512_bf16"}, None, "avx512 avx512_bf16"),
        (SKYLAKE, None, "avx512"),
        (frozenset({"avx2"}), "avx512", "avx2"),
        (frozenset({"avx2"}), "default", "INVALID_VEC_ISA"),
        (frozenset({"sse2"}), None, "INVALID_VEC_ISA"),
    ],
)
def test_isas_of_other_machines(flags, capability, isa):
    assert cpu_isa("x86_64", flags, {"ATEN_CPU_CAPABILITY": capability} if capability else {}) == isa


def test_isas_that_are_switched_off_or_unknown():
    assert cpu_isa("x86_64", SKYLAKE, {"TORCHINDUCTOR_VEC_ISA_OK": "0"}) == "INVALID_VEC_ISA"
    assert cpu_isa("aarch64", frozenset({"asimd"}), {}) == "asimd"
    assert cpu_isa("riscv64", frozenset({"x"}), {}) is None


# Compilers.


@pytest.mark.parametrize(
    "name", ["g++", "gcc", "c++", "clang++", "g++-11", "g++-12", "g++-13", "clang++-14", "clang++-16"]
)
def test_compilers_are_what_they_say(name):
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"no {name} here")
    output = subprocess.run(
        [path, "--version"], capture_output=True, text=True, check=True
    ).stdout.splitlines()[0]
    kind, version = cxx.identity({"CXX": name, "PATH": os.environ["PATH"]}).split()
    assert version in output.split() or any(word.startswith(version) for word in output.split())
    assert kind == ("clang++" if "clang" in output else "g++")


def test_without_cxx_the_compiler_is_gxx():
    if shutil.which("g++") is None:
        pytest.skip("no g++ here")
    assert cxx.identity({"PATH": os.environ["PATH"]}) == cxx.identity(
        {"CXX": "g++", "PATH": os.environ["PATH"]}
    )


def executable(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


GCC = b"\x7fELF\x00 zstd\x0013.2.1 20240316 (experimental)\x00(Pkg) \x00gcc version %s %s\n\x00"


def test_compilers_by_their_bytes(tmp_path):
    def ask(**environ):
        return cxx.identity({"PATH": str(tmp_path / "bin"), **environ})

    assert ask() is None
    executable(
        tmp_path / "bin/g++",
        b"\x7fELF\x00GLIBC_2.2.5\x00"
        + b"x" * 5000
        + GCC.replace(b"13.2.1 20240316 (experimental)", b"10.5.0"),
    )
    assert ask() == "g++ 10.5.0"
    executable(tmp_path / "bin/g++", GCC)
    assert ask() == "g++ 13.2.1 20240316 (experimental)"
    executable(tmp_path / "bin/clang++", b"\x7fELF\x00clang -cc1 version 17.0.6\x00")
    assert ask(CXX="clang++") == "clang++ 17.0.6"
    assert ask(CXX=str(tmp_path / "bin/clang++")) == "clang++ 17.0.6"
    assert ask(CXX="clang++ -O3") is None  # Inductor starts CXX as one word, and finds nothing either
    assert ask(CXX="absent") is None


UBUNTU_13 = (  # the order and the strangers that its driver really has
    b"\x7fELF\x00GLIBC_2.3.2\x0013.3.0\x00-fversion-loops\x00gcc version %s %s\n\x00"
    b"2.1.0\x00(Ubuntu 13.3.0-6ubuntu2~24.04.1) \x00"
)


def test_a_gcc_that_has_versions_of_libraries_too(tmp_path):
    environ = {"PATH": str(tmp_path / "usr/bin")}
    executable(tmp_path / "usr/bin/g++", UBUNTU_13)
    assert cxx.identity(environ) == "g++ 13.3.0"  # by its package
    executable(tmp_path / "usr/bin/g++", UBUNTU_13.replace(b"(Ubuntu 13.3.0-6ubuntu2~24.04.1)", b"(GCC)"))
    assert cxx.identity(environ).startswith("g++ sha256:")  # 13.3.0 or 2.1.0: no guess
    (tmp_path / "usr/lib/gcc/x86_64-linux-gnu/13").mkdir(parents=True)
    assert cxx.identity(environ) == "g++ 13.3.0"  # by its folder


def test_scripts_are_looked_through(tmp_path):
    """As a GPU image had it: `#!/bin/sh` and `exec /usr/gcc/bin/g++-real -B… … "$@"`."""
    executable(tmp_path / "local/g++-real", UBUNTU_13)
    script = f'#!/bin/sh\n# a comment\nexec {tmp_path}/local/g++-real -B/usr/gcc/bin/ "$@"\n'
    executable(tmp_path / "bin/g++", script.encode())
    assert cxx.identity({"PATH": str(tmp_path / "bin")}) == "g++ 13.3.0"
    executable(tmp_path / "bin/loop", f"#!/bin/sh\nexec {tmp_path}/bin/loop\n".encode())
    assert cxx.identity({"CXX": "loop", "PATH": str(tmp_path / "bin")}).startswith("loop sha256:")


def test_a_clang_that_is_a_small_program_over_its_library(tmp_path):
    executable(tmp_path / "llvm/bin/clang-18", b"\x7fELF\x00libclang-cpp.so.18\x00")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/clang++").symlink_to(tmp_path / "llvm/bin/clang-18")
    executable(tmp_path / "llvm/lib/libclang-cpp.so.18", b"\x7fELF\x00clang -cc1 version 18.1.8\x00")
    assert cxx.identity({"CXX": "clang++", "PATH": str(tmp_path / "bin")}) == "clang++ 18.1.8"


def test_a_compiler_nobody_knows_is_told_apart_by_its_bytes(tmp_path):
    texts = set()
    for content in (b"#!/bin/sh\nexec icpx $@\n", b"#!/bin/sh\nexec icpx -g\n"):
        executable(tmp_path / "bin/icpx", content)
        texts.add(cxx.identity({"CXX": "icpx", "PATH": str(tmp_path / "bin")}))
    assert len(texts) == 2
    assert all(text.startswith("icpx sha256:") for text in texts)
    executable(tmp_path / "bin/icpx", b"")
    assert cxx.identity({"CXX": "icpx", "PATH": str(tmp_path / "bin")}) is None


def test_wrappers_are_looked_through(tmp_path):
    executable(tmp_path / "real/ccache", b"\x7fELF ccache")
    (tmp_path / "masks").mkdir()
    (tmp_path / "masks/g++").symlink_to(tmp_path / "real/ccache")
    executable(tmp_path / "bin/g++", GCC)
    path = f"{tmp_path}/masks{os.pathsep}{tmp_path}/bin"
    assert cxx.identity({"PATH": path}) == "g++ 13.2.1 20240316 (experimental)"
    assert cxx.identity({"PATH": f"{tmp_path}/masks"}) is None


# Settings, threads.


def test_settings_hold_neither_folders_nor_secrets():
    environ = {
        "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
        "TORCHINDUCTOR_CACHE_DIR": "/home/me/cache",
        "TORCHINDUCTOR_REDIS_URL": "redis://:secret@host",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TRITON_CACHE_DIR": "cache",
        "TRITON_OVERRIDE": "/srv/x",
        "TORCHINDUCTOR_API_TOKEN": "secret",
        "CXX": "/usr/gcc/bin/g++",
        "HOME": "/home/me",
        "OMP_NUM_THREADS": "4",
    }
    assert settings(environ) == ["CXX=/usr/gcc/bin/g++", "TORCHINDUCTOR_MAX_AUTOTUNE=1"]
    assert settings({}) is None


@pytest.mark.parametrize(
    ("environ", "threads"),
    [
        ({"OMP_NUM_THREADS": "8"}, 8),
        ({"OMP_NUM_THREADS": "4,2"}, 4),
        ({"OMP_NUM_THREADS": "0"}, None),
        ({"OMP_NUM_THREADS": "many"}, None),
        ({"OMP_NUM_THREADS": "8", "MKL_NUM_THREADS": "2"}, None),
        ({}, None),
    ],
)
def test_threads_before_torch(environ, threads, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert detect(environ).get("threads") == threads


def test_a_torch_that_is_being_imported_is_left_alone(monkeypatch):
    import types

    half = types.ModuleType("torch")
    half.get_num_threads = lambda: pytest.fail("asked a module that is not complete")
    half.__spec__ = types.SimpleNamespace(_initializing=True)
    monkeypatch.setitem(sys.modules, "torch", half)
    assert detect({"OMP_NUM_THREADS": "3"})["threads"] == 3


# Which device, by NVML's answers of other machines.


class Nvml:
    """NVML's functions that are used, over a machine described by names; MIG instances in a list."""

    class NVMLError(Exception):
        pass

    def __init__(self, *gpus):
        self.gpus = gpus

    def nvmlDeviceGetCount(self):
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.gpus[index]["uuid"]

    def nvmlDeviceGetName(self, handle):
        return self.of(handle).get("name", "NVIDIA H200")

    def nvmlDeviceGetUUID(self, handle):
        return handle

    def nvmlDeviceIsMigDeviceHandle(self, handle):
        return handle.startswith("MIG-")

    def nvmlDeviceGetMigMode(self, handle):
        instances = self.of(handle).get("mig")
        if instances is None:
            raise self.NVMLError("not supported")
        return (1 if instances != "off" else 0, 0)

    def nvmlDeviceGetMaxMigDeviceCount(self, _handle):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index):
        instances = self.of(handle)["mig"]
        if index >= len(instances):
            raise self.NVMLError("not found")
        return instances[index]

    def of(self, handle):
        return next(gpu for gpu in self.gpus if gpu["uuid"] == handle)


PLAIN = Nvml({"uuid": "GPU-aa1"}, {"uuid": "GPU-ab2"}, {"uuid": "GPU-c3", "mig": "off"})
MIXED = Nvml({"uuid": "GPU-a", "mig": ["MIG-1", "MIG-2"]}, {"uuid": "GPU-b", "mig": []}, {"uuid": "GPU-c"})


@pytest.mark.parametrize(
    ("visible", "shown"),
    [
        (None, ["GPU-aa1", "GPU-ab2", "GPU-c3"]),
        ("", []),
        ("-1", []),
        ("2,0", ["GPU-c3", "GPU-aa1"]),
        ("0,-1,1", ["GPU-aa1"]),
        ("1, 7, 0", ["GPU-ab2"]),
        ("0,0,1", []),
        ("1gpu2,+0", ["GPU-ab2", "GPU-aa1"]),
        ("0,GPU-c3", ["GPU-aa1"]),
        ("GPU-c3,GPU-aa1", ["GPU-c3", "GPU-aa1"]),
        ("GPU-c3,0,GPU-aa1", ["GPU-c3"]),
        ("GPU-c3,GPU-c", []),
        ("GPU-c3,GPU-a,GPU-aa1", ["GPU-c3"]),
        ("GPU-ab", ["GPU-ab2"]),
        ("GPU-a", []),
        ("GPU-", []),
        ("all", []),
    ],
)
def test_cuda_visible_devices(visible, shown):
    assert visible_devices(PLAIN, visible) == shown


@pytest.mark.parametrize(
    ("visible", "shown"),
    [
        ("0", ["MIG-1"]),
        ("MIG-2", ["MIG-2"]),
        ("1", []),
        ("2", ["GPU-c"]),
        ("2,0", ["MIG-1"]),
        ("MIG-9", []),
        ("MIG-2,MIG-1", ["MIG-2"]),
        ("MIG-9,MIG-1", []),
        ("GPU-a,GPU-c", ["MIG-1"]),
        (None, ["MIG-1"]),
    ],
)
def test_mig(visible, shown):
    assert visible_devices(MIXED, visible) == shown


# What was tested.


@pytest.mark.parametrize(
    ("facts", "good"),
    [
        ({"torch": "2.13.0+cpu"}, True),
        ({"torch": "2.13.1"}, True),
        ({"torch": "2.12.0+cpu"}, False),
        ({"torch": "2.11.0+cu130", "triton": "3.6.0", "gpu": "NVIDIA H200"}, True),
        ({"torch": "2.11.0+cu130", "triton": "3.7.0", "gpu": "NVIDIA H200"}, False),
        ({"torch": "2.13.0+cu130", "triton": "3.6.0", "gpu": "NVIDIA H200"}, False),
    ],
)
def test_supported_is_tested(facts, good, monkeypatch):
    monkeypatch.delenv("CACHESVC_UNTESTED", raising=False)
    facts = {"platform": "linux-x86_64", **facts}
    reason = supported(facts)
    assert (reason is None) == good
    if not good:
        assert "tested" in reason
        assert "CACHESVC_UNTESTED=1" in reason
        monkeypatch.setenv("CACHESVC_UNTESTED", "1")
        assert supported(facts) is None
    assert "Linux" in supported({**facts, "platform": "darwin-arm64"}, untested=True)


@pytest.mark.compiles
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor's probes need a compiler")
def test_the_isa_is_what_inductors_probes_find(tmp_path):
    """Runs the real probes: they compile, link and load three libraries."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("no torch here")
    program = "from torch._inductor import cpu_vec_isa; print(cpu_vec_isa.pick_vec_isa())"
    environ = {**HERE, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True, timeout=300
    )
    ours = detect({})["cpu_isa"].replace(" avx512_bf16", "").replace(" amx_fp16", "")
    assert done.stdout.splitlines()[-1] == ours


VISIBLE = ["", "-1", "0", "2,0", "0,-1,1", "1, 2, 0", "0,0,1", "1gpu2,+0", "0,GPU-c3", "GPU-c3,GPU-aa1"]
VISIBLE += [
    "GPU-c3,0",
    "GPU-c3,GPU-c",
    "GPU-c3,GPU-a,GPU-aa1",
    "GPU-ab",
    "all",
    "GPU-c3, GPU-aa1",
    " 1",
    "x,1",
]


@pytest.mark.parametrize("visible", VISIBLE)
def test_visible_devices_are_those_that_torch_reads(visible, monkeypatch):
    """Compares with ``torch.cuda.device_count()``, which asks NVML by these functions too."""
    import torch.cuda

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    parsed = torch.cuda._parse_visible_devices()
    uuids = [gpu["uuid"] for gpu in PLAIN.gpus]
    if parsed and isinstance(parsed[0], str):
        parsed = torch.cuda._transform_uuid_to_ordinals(parsed, uuids)
    assert visible_devices(PLAIN, visible) == [uuids[index] for index in parsed]


# The same by the real binding (nvidia-ml-py) over a C library in NVML's place. On hardware, one whole H200
# was seen: docs/gpu.md. Nothing of several devices or MIG was.

DETECT = """
import json, os, sys
from cachesvc_client.environment import gpu
exists = os.path.exists
os.path.exists = lambda path: path == "/dev/nvidiactl" or exists(path)
first = gpu.first_gpu(os.environ)
if (child := os.fork()) == 0:
    os._exit(0 if gpu.first_gpu(os.environ) == first else 1)
first["in a forked child"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
first["cuda"] = "libcuda" in open("/proc/self/maps").read()
print(json.dumps(first))
"""


@pytest.fixture(scope="module")
def nvml(tmp_path_factory) -> Path:
    cxx = shutil.which("gcc") or shutil.which("cc")
    if cxx is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).with_name("nvml_of_two.c")
    command = [cxx, "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", source]
    subprocess.run(command, check=True)
    return folder


def gpu_facts(nvml: Path, **environ: str) -> dict:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    done = subprocess.run(
        [sys.executable, "-c", DETECT],
        env={**kept, "LD_LIBRARY_PATH": str(nvml), **environ},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts.pop("in a forked child"), facts.pop("cuda")) == (0, False)
    return facts


H200 = {"driver": "580.159.04", "gpu_count": 1, "gpu": "NVIDIA H200", "compute_capability": "9.0"}
SLICE = {
    "driver": "580.159.04",
    "gpu_count": 1,
    "mig": "3g.20gb",
    "gpu": "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
    "compute_capability": "8.0",
}
FIRST = {**SLICE, "mig": "1g.5gb", "gpu": "NVIDIA A100-SXM4-40GB MIG 1g.5gb"}
DOUBT = {"driver": "580.159.04", "gpu_count": 1}


@pytest.mark.parametrize(
    ("environ", "facts"),
    [
        ({"NVML_NAMES": "alike"}, {**H200, "gpu_count": 2}),
        ({"NVML_NAMES": "alike", "CUDA_VISIBLE_DEVICES": "1"}, H200),
        # Numbers of devices that differ are CUDA's, fastest first, which NVML does not know.
        ({"CUDA_VISIBLE_DEVICES": "1"}, DOUBT),
        ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, DOUBT),
        ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, H200),
        ({"CUDA_VISIBLE_DEVICES": "GPU-hh"}, H200),
        ({"CUDA_VISIBLE_DEVICES": "MIG-3"}, SLICE),
        ({"CUDA_VISIBLE_DEVICES": "MIG-33333333-0000,MIG-11111111-0000"}, SLICE),
        ({"CUDA_VISIBLE_DEVICES": "GPU-aa"}, FIRST),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, FIRST),
        ({"CUDA_VISIBLE_DEVICES": "MIG-3", "NVML_OLD": "1"}, DOUBT),
        ({"CUDA_VISIBLE_DEVICES": ""}, {}),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, {}),
        ({"CUDA_VISIBLE_DEVICES": "2,1"}, {}),
    ],
)
def test_the_gpu_by_nvmls_own_interface(nvml, environ, facts):
    assert gpu_facts(nvml, **environ) == facts


def test_a_slice_is_another_gpu_and_the_driver_decides_nothing():
    base = {"torch": "2.11.0", "platform": "linux-x86_64", "python_abi": "cpython-312", "cuda": "13.0"}
    whole = {**base, "gpu": "NVIDIA A100-SXM4-40GB", "compute_capability": "8.0", "driver": "580"}
    assert not compare({**base, **SLICE}, whole, ("gpu",))
    assert not compare({**base, **FIRST}, {**base, **SLICE}, ("gpu",))
    newer = compare({**whole, "driver": "590"}, whole, ("gpu",))
    assert newer and [difference.factor for difference in newer.recorded] == ["driver"]
    assert not compare({**base, **DOUBT}, whole, ("gpu",)), "what cannot be told is a miss"
