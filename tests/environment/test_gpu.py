"""Test the facts of GPUs, by NVML's answers on other machines and by NVML's own interface."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cachesvc_client.environment.gpu import visible_devices
from cachesvc_client.wire.compare import compare

# The choice of a device, by NVML's answers on other machines.


class Nvml:
    """Stands for a machine: has the NVML functions that the client uses, over names; MIG instances are in a
    list."""

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
    ("visible", "expected"),
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
def test_cuda_visible_devices_choose_the_device(visible, expected):
    assert visible_devices(PLAIN, visible) == expected


@pytest.mark.parametrize(
    ("visible", "expected"),
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
def test_mig_instances_choose_the_device(visible, expected):
    assert visible_devices(MIXED, visible) == expected


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
    """``torch.cuda.device_count()`` asks NVML by these functions too."""
    import torch.cuda

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    parsed = torch.cuda._parse_visible_devices()
    uuids = [gpu["uuid"] for gpu in PLAIN.gpus]
    if parsed and isinstance(parsed[0], str):
        parsed = torch.cuda._transform_uuid_to_ordinals(parsed, uuids)
    assert visible_devices(PLAIN, visible) == [uuids[index] for index in parsed]


# The same by the real binding (nvidia-ml-py) over a C library in NVML's place. Of real hardware, one whole
# H200
# was tested: docs/gpu.md. Several devices and MIG were not.

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
    variables = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    result = subprocess.run(
        [sys.executable, "-c", DETECT],
        env={**variables, "LD_LIBRARY_PATH": str(nvml), **environ},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
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
        # CUDA numbers different devices with the fastest first, which NVML does not know.
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
def test_nvmls_own_interface_gives_the_gpu(nvml, environ, facts):
    assert gpu_facts(nvml, **environ) == facts


def test_a_slice_is_another_gpu_and_the_driver_decides_nothing():
    base = {"torch": "2.11.0", "platform": "linux-x86_64", "python_abi": "cpython-312", "cuda": "13.0"}
    whole = {**base, "gpu": "NVIDIA A100-SXM4-40GB", "compute_capability": "8.0", "driver": "580"}
    assert not compare({**base, **SLICE}, whole, ("gpu",))
    assert not compare({**base, **FIRST}, {**base, **SLICE}, ("gpu",))
    newer = compare({**whole, "driver": "590"}, whole, ("gpu",))
    assert newer and [difference.factor for difference in newer.recorded] == ["driver"]
    assert not compare({**base, **DOUBT}, whole, ("gpu",)), "two GPUs that cannot be distinguished are a miss"
