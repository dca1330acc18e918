"""Test ``detect`` on this machine against the answers of PyTorch, and for other machines by text."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cachesvc_client
from cachesvc_client.environment.cpu import cpu_isa
from cachesvc_client.environment.detect import detect
from cachesvc_client.environment.settings import settings
from cachesvc_client.wire.factors import BY_NAME
from tests.releases import TORCH

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
    # The import must not happen in this process: other tests ask about its absence.
    if importlib.util.find_spec("torch") is None:
        pytest.skip("no torch here")
    result = subprocess.run(
        [sys.executable, "-c", ASK_TORCH], env=HERE, capture_output=True, text=True, check=True, timeout=120
    )
    return json.loads(result.stdout.splitlines()[-1])


coarser = pytest.mark.skipif(
    TORCH < (2, 10), reason="Inductor tells fewer CPUs apart there; cachesvc tells all of them apart"
)


def test_versions_are_those_of_torch(torch_says):
    facts = detect()
    assert facts["torch"] == torch_says["torch"]
    assert facts.get("cuda") == torch_says["cuda"]


@coarser
@pytest.mark.parametrize("value", ["None", "avx2", "avx512", "default", "zvector", "nonsense"])
def test_the_isa_is_inductors_choice(torch_says, value):
    environ = {} if value == "None" else {"ATEN_CPU_CAPABILITY": value}
    assert detect(environ)["cpu_isa"] == torch_says["isas"][value]


def test_threads_are_torchs_once_torch_is_imported(torch_says):
    assert torch_says["ours"]["threads"] == torch_says["threads"]


def test_detection_imports_starts_and_prints_nothing():
    """The test watches audit events, which see every process; an import of ``torch`` or a call of NVML costs
    hundreds of milliseconds."""
    program = """
import sys
seen = []
starts = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "os.system")
sys.addaudithook(lambda event, _: seen.append(event) if event in starts else None)
from cachesvc_client.environment.detect import detect
detect()
print(seen, sorted({"torch", "triton", "importlib.metadata", "subprocess", "ctypes"} & set(sys.modules)))
"""
    result = subprocess.run(
        [sys.executable, "-S", "-c", path_of_this_process() + program], capture_output=True, text=True
    )
    assert (result.stdout, result.stderr) == ("[] []\n", "")


def path_of_this_process() -> str:
    """Return program text that sets the path of imports: the child runs without ``site``, which would find an
    editable install."""
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


def test_the_version_is_read_as_text(tmp_path, monkeypatch):
    """The metadata of a PyPI wheel says 2.11.0. An import of this torch would raise."""
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
def test_the_isas_of_other_machines_are_detected(flags, capability, isa):
    assert cpu_isa("x86_64", flags, {"ATEN_CPU_CAPABILITY": capability} if capability else {}) == isa


def test_isas_that_are_switched_off_or_unknown_are_reported():
    assert cpu_isa("x86_64", SKYLAKE, {"TORCHINDUCTOR_VEC_ISA_OK": "0"}) == "INVALID_VEC_ISA"
    assert cpu_isa("aarch64", frozenset({"asimd"}), {}) == "asimd"
    assert cpu_isa("riscv64", frozenset({"x"}), {}) is None


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
def test_the_number_of_threads_is_known_before_torch_is_imported(environ, threads, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert detect(environ).get("threads") == threads


def test_a_half_imported_torch_is_not_asked(monkeypatch):
    import types

    half = types.ModuleType("torch")
    half.get_num_threads = lambda: pytest.fail("asked a module that is not complete")
    half.__spec__ = types.SimpleNamespace(_initializing=True)
    monkeypatch.setitem(sys.modules, "torch", half)
    assert detect({"OMP_NUM_THREADS": "3"})["threads"] == 3


@coarser
@pytest.mark.compiles
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor's probes need a compiler")
def test_the_isa_is_the_result_of_inductors_probes(tmp_path):
    """The real probes run: they compile, link and load three libraries."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("no torch here")
    program = "from torch._inductor import cpu_vec_isa; print(cpu_vec_isa.pick_vec_isa())"
    environ = {**HERE, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True, timeout=300
    )
    ours = detect({})["cpu_isa"].replace(" avx512_bf16", "").replace(" amx_fp16", "")
    assert result.stdout.splitlines()[-1] == ours
