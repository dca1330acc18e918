"""Test what a machine without a GPU does for one: descriptions, kernels' files, and refusals.

What compiles needs torch for CUDA: ``tests/without_gpu``.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch

from cachesvc.warm.gpuless import choices, description
from cachesvc.warm.gpuless.cubin import KernelUse, kernel_use
from cachesvc.warm.gpuless.decisions import Decisions, GpuNeeded
from cachesvc.warm.verdict import judge
from cachesvc.warm.worker.phase import PhaseResult
from cachesvc_client.wire.errors import InvalidRequest, Unsupported

from .conftest import TINY, command

CUBINS = Path(__file__).parent / "cubins"
H100 = json.loads((Path(__file__).parent / "h100.json").read_text())
"""What an H100 said of itself (driver 580.159.04)."""


def _file(folder: Path, **changed: object) -> Path:
    path = folder / "gpu.json"
    path.write_text(json.dumps({**H100, **changed}))
    return path


def test_a_description_of_an_h100_is_read() -> None:
    device = description.read(Path(__file__).parent / "h100.json")
    assert (device.name, device.compute_capability) == ("NVIDIA H100 80GB HBM3", (9, 0))
    assert device.properties["multi_processor_count"] == 132


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"format": 1}, "format 1"),
        ({"name": "H100\x1b[2J"}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"capability": "9"}, "capability"),
        ({"properties": {"warp_size": 32}}, "properties lack"),
        ({"properties": {**H100["properties"], "warp_size": -1}}, "warp_size"),
        ({"properties": {**H100["properties"], "warp_size": 1 << 60}}, "warp_size"),
        ({"properties": {**H100["properties"], "__class__": 1, "a b": 1}}, "a b"),
        ({"triton": {}}, "max_shared_mem"),
        ({"attention": []}, "attention"),
        ({"attention": [3, 3, 1]}, "attention"),
        ({"capability": ["9.0"]}, "capability"),
    ],
)
def test_what_describes_no_gpu_is_refused(tmp_path: Path, changed: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem) as caught:
        description.read(_file(tmp_path, **changed))
    assert "describe-gpu" in caught.value.hint and caught.value.message.isprintable()


def test_a_file_that_is_too_large_or_absent_is_refused(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b" " * (description.MAX_BYTES + 1))
    for name in ("large", "absent", "."):
        with pytest.raises(InvalidRequest):
            description.read(tmp_path / name)


def test_no_description_is_made_without_a_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(Unsupported, match="no NVIDIA GPU"):
        description.describe()


@pytest.mark.parametrize(("kernel", "use"), [("plain", KernelUse(16, 0)), ("spilled", KernelUse(24, 12))])
def test_registers_and_spills_are_read_from_a_kernel(kernel: str, use: KernelUse) -> None:
    """The numbers are those of ``cuobjdump --dump-resource-usage``, REG and STACK / 4."""
    assert kernel_use(CUBINS / f"{kernel}.cubin", kernel) == use


def test_a_file_that_is_no_cubin_is_refused(tmp_path: Path) -> None:
    whole = (CUBINS / "plain.cubin").read_bytes()
    path = tmp_path / "plain.cubin"
    for data in (
        b"",
        b"\x7fELF",
        whole[:64],
        whole[: len(whole) // 2],
        b"\x7fELF\x01" + whole[5:],
        bytes(6000),
    ):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"plain\.cubin"):
            kernel_use(path, "plain")
    path.write_bytes(whole)
    with pytest.raises(ValueError, match="does not say what other"):
        kernel_use(path, "other")


def test_constants_of_the_absent_device_are_worked_out_on_the_cpu() -> None:
    decisions = Decisions(description.read(Path(__file__).parent / "h100.json"))
    with choices._cpu_mode(decisions.refuse):
        value = torch.ops.aten.full.default([1], 3.0, device=torch.device("cuda")) * 2 + 1
        assert value.device.type == "cpu" and value.item() == 7
        with pytest.raises(GpuNeeded, match="a constant of exp may differ"):
            torch.exp(value)
        assert torch.exp(torch.zeros(1)).item() == 1  # what was made for the CPU is the CPU's own
    assert decisions.refusals == [
        "without a GPU: a constant of exp may differ from the GPU's in its last bit"
    ]


def test_the_report_says_what_nobody_has_seen() -> None:
    compiled = PhaseResult("compile", untimed=("a", "b", "c", "d"))
    assert judge.unproven(compiled, without_gpu=False) == []
    first, second = judge.unproven(compiled, without_gpu=True)
    assert "nothing was run" in first and "unproven" in first
    assert second.startswith("4 choices") and "and 1 more" in second


def _warm(
    folder: Path, plain_environment: dict[str, str], *arguments: str
) -> subprocess.CompletedProcess[str]:
    (folder / "warm.toml").write_text(
        f'name = "team/tiny"\n[[target]]\nid = "mlp"\nfactory = "models:mlp"\npaths = ["{TINY}"]\n'
    )
    return subprocess.run(
        command("warm", folder / "warm.toml", "--for-gpu", _file(folder), *arguments),
        capture_output=True,
        text=True,
        env=plain_environment,
        cwd=folder,
        check=False,
        timeout=120,
    )


def test_check_needs_the_gpu(tmp_path: Path, plain_environment: dict[str, str]) -> None:
    done = _warm(tmp_path, plain_environment, "--check")
    assert done.returncode == InvalidRequest.exit_status
    assert "--check restores on the GPU" in done.stderr


def test_another_torch_is_refused_before_anything_compiles(
    tmp_path: Path, plain_environment: dict[str, str]
) -> None:
    done = _warm(tmp_path, plain_environment, "--out", str(tmp_path / "out"))
    assert done.returncode == Unsupported.exit_status, done.stderr
    assert "without a GPU: " in done.stdout and ": compile" not in done.stderr
    assert not list((tmp_path / "out").iterdir())
