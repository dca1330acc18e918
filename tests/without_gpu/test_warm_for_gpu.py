"""Warm for an H100 here, with torch 2.11 for CUDA and Triton 3.6: real compiles, real kernels for sm_90.

That a GPU finds and runs them is shown on a GPU (`benchmarks/gpu/gpuless.py`, docs/gpu.md).
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cachesvc_client.bundle.check import check_envelope
from cachesvc_client.bundle.file import open_bundle
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.compare import Compatible, compare
from cachesvc_client.wire.manifest.records import Manifest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
H100 = ROOT / "tests" / "warm" / "h100.json"
PYTHON = ROOT / ".torch" / "2.11.0" / "bin" / "python"
TRITON = Path(os.environ.get("CACHESVC_TEST_TRITON", ROOT / ".torch" / "triton-3.6.0"))
VARIABLE = "CACHESVC_TEST_WITHOUT_GPU"
"""If it is not set, the tests are skipped: they take minutes, and Triton's wheel."""
REFUSED = {
    "attention": "scaled_dot_product_attention asks the GPU",
    "seen": "scaled_dot_product_attention asks the GPU",
    "constant": "a constant of exp may differ",
    "tuned": " times ",
    "descent": "coordinate descent times",
    "trained": "a backward needs one",
    "script": "a script runs by itself",
}
"""For each target that cannot be built: words of the reason."""

pytestmark = pytest.mark.skipif(not os.environ.get(VARIABLE), reason=f"{VARIABLE} is not set")


@dataclass(frozen=True)
class Run:
    """Holds what one run of warm came to."""

    status: int
    targets: dict[str, dict[str, Any]]
    folder: Path

    def manifest(self, target: str) -> Manifest:
        """Return the signed manifest of a target's bundle."""
        key = SigningKey.load(self.folder / "home" / ".config" / "cachesvc" / "signing.key").public
        envelope, _ = open_bundle(self.folder / "out" / f"model-{target}-default.cachesvc")
        return check_envelope(envelope, trusted=[key], expected=None, now=time.time()).manifest


def _environ(folder: Path) -> dict[str, str]:
    """Return the variables of a process whose home is in a folder."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("CACHESVC_")}
    paths = (TRITON, ROOT, ROOT / "client")
    environ |= {"HOME": str(folder / "home"), "PYTHONPATH": os.pathsep.join(map(str, paths))}
    return environ | {"XDG_CONFIG_HOME": str(folder / "home" / ".config")}


def _run(folder: Path, *arguments: str, **variables: str) -> str:
    """Run Python with torch for CUDA, and return what it prints."""
    command, environ = [str(PYTHON), *arguments], _environ(folder) | variables
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=300, check=False)
    assert not done.returncode, done.stderr
    return done.stdout


def _warm(folder: Path, targets: str, device: Path = H100) -> Run:
    head = f'name = "team/model"\n[defaults]\ndevice = "cuda"\nruns = 1\npaths = ["{HERE}"]\n'
    (folder / "warm.toml").write_text(head + targets)
    (folder / "home").mkdir()
    (folder / "train.py").write_text("import torch\n")
    code = "from cachesvc.cli import main; main()"
    command = [
        str(PYTHON),
        "-c",
        code,
        "warm",
        "warm.toml",
        "--for-gpu",
        str(device),
        "--out",
        "out",
        "--json",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=_environ(folder), timeout=570, check=False
    )
    assert done.stdout.startswith("{"), done.stderr
    document = json.loads(done.stdout)
    return Run(
        done.returncode, {item["target"].partition("/")[0]: item for item in document["targets"]}, folder
    )


def _target(name: str, factory: str = "", more: str = "") -> str:
    return f'[[target]]\nid = "{name}"\nfactory = "models:{factory or name}"\n{more}\n'


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Warm two models."""
    return _warm(tmp_path_factory.mktemp("warm"), _target("mlp") + _target("turned"))


def test_a_fresh_process_finds_everything(warm: Run) -> None:
    assert warm.status == 0, warm.targets
    for target in warm.targets.values():
        assert target["status"] == "warm" and target["observed"]["compilations"] == 0
        assert "nothing was run" in target["notes"][0]


def test_an_entry_has_kernels_for_the_gpu_and_the_library_that_a_fresh_host_builds(warm: Run) -> None:
    names = [file.path for file in warm.manifest("mlp").files]
    assert any(name.endswith(".cubin") for name in names)
    assert any("cuda_utils" in name and name.endswith(".so") for name in names)


def test_the_library_names_the_drivers_so_that_a_process_can_load_it(tmp_path: Path) -> None:
    """The first ones did not, and no H100 loaded them: cuModuleGetFunction was not found."""
    code = "from cachesvc.warm.gpuless import helper; helper.build()"
    _run(tmp_path, "-c", code, TRITON_CACHE_DIR=str(tmp_path / "triton"))
    [library] = (tmp_path / "triton").rglob("cuda_utils*.so")
    assert b"\0libcuda.so.1\0" in library.read_bytes()


def test_a_graph_has_the_text_that_it_has_on_the_gpu(tmp_path: Path) -> None:
    """AOTAutograd's key holds the classes of inputs. On an H100 the first entries hit in Inductor's cache
    alone."""
    text = _run(tmp_path, str(HERE / "graph_text.py"), str(H100))
    assert "torch.nn.parameter.Parameter" in text and "torch.Tensor" in text and "FakeTensor" not in text


def test_keys_have_the_order_of_attention_kernels_of_the_gpu(tmp_path: Path) -> None:
    """On an H100 PyTorch tries cuDNN's kernel first, once it has chosen one."""
    code = (
        "import sys, torch; from pathlib import Path\n"
        "from cachesvc.warm.gpuless import description, stand_in\n"
        "stand_in.install(description.read(Path(sys.argv[1])))\n"
        "from cachesvc_client.graphs.ambient import of_autograd\n"
        "graph = torch.fx.symbolic_trace(lambda x: torch.softmax(x, -1))\n"
        "parts = of_autograd(object(), graph)\n"
        "print(parts['attention_backends']['_get_sdp_priority_order'])"
    )
    assert _run(tmp_path, "-c", code, str(H100)).strip() == "[3, 1, 2, 0, 4]"


def test_an_entry_says_that_it_is_unproven(warm: Run) -> None:
    manifest = warm.manifest("mlp")
    assert manifest.statement.lane == "unproven"
    assert manifest.provenance["built"].startswith("without a GPU, for NVIDIA H100 80GB HBM3; unproven")
    assert manifest.fingerprint["gpu"] == "NVIDIA H100 80GB HBM3"
    assert manifest.fingerprint["compute_capability"] == "9.0"


def test_an_entry_fits_the_gpu_whatever_the_cpu_is(warm: Run) -> None:
    """The first entries were bound to the builder's CPU and not to the GPU: an H100's host refused them."""
    manifest = warm.manifest("mlp")
    assert manifest.scopes == ("gpu",)
    host = {**manifest.fingerprint, "cpu_isa": "avx512 amx_tile", "cpu_flags": ["avx"], "threads": 99}
    assert isinstance(compare(host, manifest.fingerprint, manifest.scopes), Compatible)
    other = {**host, "gpu": "NVIDIA H200"}
    assert not isinstance(compare(other, manifest.fingerprint, manifest.scopes), Compatible)


def test_a_choice_without_timing_is_noted(warm: Run) -> None:
    assert any("made without timing" in note for note in warm.targets["turned"]["notes"])


def test_another_gpu_is_another_entry(warm: Run, tmp_path: Path) -> None:
    device = tmp_path / "h200.json"
    device.write_text(json.dumps({**json.loads(H100.read_text()), "name": "NVIDIA H200"}))
    other = _warm(tmp_path, _target("mlp"), device)
    graphs = [
        {
            file.path
            for file in run.manifest("mlp").files
            if file.path.startswith(("aotautograd/", "fxgraph/"))
        }
        for run in (warm, other)
    ]
    assert (
        graphs[0]
        and graphs[1]
        and not {path.split("/")[-2] for path in graphs[0]} & {path.split("/")[-2] for path in graphs[1]}
    )


def test_what_needs_the_gpu_is_refused_with_the_reason(tmp_path: Path) -> None:
    targets = [
        _target("attention"),
        _target("seen"),
        _target("constant"),
        _target("tuned", "mlp", 'modes = ["max-autotune"]'),
        _target("descent", "mlp", "options = {coordinate_descent_tuning = true}"),
        _target("trained", "mlp", 'kind = "training"\ngrad = "grad"'),
        '[[target]]\nid = "script"\nscript = "train.py"\n',
    ]
    run = _warm(tmp_path, "".join(targets))
    assert run.status and not list((tmp_path / "out").iterdir())
    reasons = {name: " ".join(target["reasons"]) for name, target in run.targets.items()}
    assert {name: words in reasons[name] for name, words in REFUSED.items()} == dict.fromkeys(
        REFUSED, True
    ), reasons
    assert all(reason.startswith("without a GPU: ") for reason in reasons.values())
