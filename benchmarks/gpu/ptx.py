"""What the CUDA driver's cache of compiled PTX takes and refuses, and what it saves: ``ptx.py --out DIR``.

The facts behind the kind `cuda`, from fresh processes. First without torch: one loads PTX of its own through
the driver and says whether the driver loaded its compiler for that (by its mapped files, and as the client
tells it). Then cuDNN's attention through torch: the first call with an empty cache, and with a copy of a
filled one. Needs a GPU. Writes ``ptx.json``; exit status 0 if everything was as the client relies on.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[0:1] = [str(HERE.parent.parent / "client")]

from cachesvc_client import observe  # noqa: E402
from cachesvc_client.kinds import cuda  # noqa: E402
from cachesvc_client.node.folders import listing  # noqa: E402

COMPILER = "libnvidia-ptxjitcompiler"
KERNEL = """.version 7.0
.target sm_70
.address_size 64
.visible .entry k(.param .u64 p){{ .reg .b64 %rd<2>; .reg .f32 %f<2>; ld.param.u64 %rd1,[p];
mov.f32 %f1, 0f{bits:08X}; st.global.f32 [%rd1], %f1; ret; }}
"""
SHAPES = ((16, 128, 128), (32, 128, 64))
"""Heads, length, width of a head: of Qwen3 and Llama in the matrix."""
Answer = dict[str, Any]


def load(late: str, numbers: list[int]) -> Answer:
    """Loads a kernel for each number, which writes that number. ``late``: the folder is named after the
    driver was initialised."""
    observer = observe.start()
    driver = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: Any) -> None:
        if status := getattr(driver, name)(*arguments):
            raise SystemExit(f"{name}: status {status}")

    call("cuInit", 0)
    if late:
        os.environ[cuda.VARIABLE] = late
    device, context, place = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuMemAlloc_v2", ctypes.byref(place), 4)
    right = True
    begin = time.perf_counter()
    for number in numbers:
        bits = struct.unpack("<I", struct.pack("<f", float(number)))[0]
        module, kernel, found = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_float()
        call("cuModuleLoadData", ctypes.byref(module), KERNEL.format(bits=bits).encode() + b"\0")
        call("cuModuleGetFunction", ctypes.byref(kernel), module, b"k")
        arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(place), ctypes.c_void_p))
        call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)
        call("cuMemcpyDtoH_v2", ctypes.byref(found), place, 4)
        right = right and found.value == number
    return {
        "seconds": time.perf_counter() - begin,
        "right": right,
        "compiled": COMPILER in Path("/proc/self/maps").read_text(),
        "told": bool(observer.snapshot().driver_compiled),
    }


def attend() -> Answer:
    """The first call of cuDNN's attention for each shape, and the second."""
    observer = observe.start()
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def timed(query: torch.Tensor) -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        torch.nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True)
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    seconds = {}
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        for shape in SHAPES:
            query = torch.randn(1, *shape, device="cuda", dtype=torch.bfloat16)
            seconds["x".join(map(str, shape))] = [timed(query), timed(query)]
    told = bool(observer.snapshot().driver_compiled)
    return {
        "first, second": seconds,
        "told": told,
        "compiled": COMPILER in Path("/proc/self/maps").read_text(),
    }


class Cases:
    """Each starts from a copy of a folder that a process has filled with the kernels 1 and 2."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.full = scratch / "full"
        self.result: dict[str, Answer] = {}
        self.right = True

    def fresh(self, *words: str, folder: Path | None, **variables: str) -> Answer:
        """A process of this script with a home of its own."""
        home = self.scratch / f"home-{len(list(self.scratch.iterdir()))}"
        home.mkdir()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_CACHE")}
        environment |= {"HOME": str(home), **variables}
        if folder is not None:
            environment[cuda.VARIABLE] = str(folder)
        command = [sys.executable, str(HERE / "ptx.py"), *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        try:
            answer: Answer = json.loads(done.stdout.strip().splitlines()[-1])
        except (ValueError, IndexError):
            raise SystemExit(f"{words}: status {done.returncode}: {done.stderr[-800:]}") from None
        return answer

    def case(
        self, name: str, compiles: bool, change: Callable[[Path], object] = lambda _: None, **run: Any
    ) -> None:
        folder = self.scratch / f"case-{len(self.result)}"
        shutil.copytree(self.full, folder)
        change(folder)
        late = str(folder) if run.pop("late", False) else ""
        answer = self.fresh("--load", f"--late={late}", "1", "2", folder=None if late else folder, **run)
        as_expected = answer["compiled"] == answer["told"] == compiles and answer["right"]
        self.result[name] = answer | {"as expected": as_expected}
        self.right = self.right and as_expected
        print(f"{name:46} compiled {answer['compiled']!s:5} as expected {as_expected}", flush=True)

    def run(self) -> None:
        filled = self.fresh("--load", "1", "2", folder=self.full)
        assert filled["compiled"] and filled["told"], filled
        self.case("as it was made", False)
        self.case("without its index", False, lambda folder: (folder / "index").unlink())
        self.case("beside an index of something else", False, lambda f: (f / "index").write_bytes(b"x" * 999))
        self.case("entries alone, of mode 0600", False, only_entries)
        self.case("read-only", False, lambda f: subprocess.run(["chmod", "-R", "a-w", f], check=True))
        self.case("a byte changed in each", True, lambda folder: each(folder, changed))
        self.case("each cut", True, lambda folder: each(folder, lambda data: data[:200]))
        self.case("each empty", True, lambda folder: each(folder, lambda _: b""))
        self.case("the two swapped", True, swap)
        self.case("named after the driver was initialised", True, late=True)
        self.case("CUDA_CACHE_DISABLE=1", True, CUDA_CACHE_DISABLE="1")

    def attention(self, pairs: int) -> None:
        """First calls without and with a copy of what an earlier process left, in turn."""
        made = self.scratch / "attention"
        self.fresh("--attend", folder=made)
        answers: dict[str, list[Answer]] = {"without": [], "with": []}
        for _ in range(pairs):
            answers["without"].append(self.fresh("--attend", folder=None))
            copy = self.scratch / f"copy-{len(answers['with'])}"
            for path in listing(made, cuda.RULES):
                (copy / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(made / path, copy / path)
            answers["with"].append(self.fresh("--attend", folder=copy))
        self.right = self.right and not any(one["compiled"] or one["told"] for one in answers["with"])
        sizes = [(made / path).stat().st_size for path in listing(made, cuda.RULES)]
        self.result["attention"] = {**answers, "files": len(sizes), "bytes": sum(sizes)}
        for name, given in answers.items():
            shown = [
                {shape: round(both[0], 3) for shape, both in one["first, second"].items()} for one in given
            ]
            print(f"attention {name:8} {shown}", flush=True)


def each(folder: Path, change: Callable[[bytes], bytes]) -> None:
    for path in listing(folder, cuda.RULES):
        (folder / path).write_bytes(change((folder / path).read_bytes()))


def changed(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :]


def swap(folder: Path) -> None:
    one, other = (folder / path for path in sorted(listing(folder, cuda.RULES)))
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def only_entries(folder: Path) -> None:
    (folder / "index").unlink()
    for path in listing(folder, cuda.RULES):
        (folder / path).chmod(0o600)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--load", action="store_true", help="for the processes that it starts")
    parser.add_argument("--attend", action="store_true", help="the same")
    parser.add_argument("--late", default="")
    parser.add_argument("numbers", type=int, nargs="*")
    options = parser.parse_args()
    if options.load or options.attend:
        print(json.dumps(load(options.late, options.numbers) if options.load else attend()), flush=True)
        os._exit(0)
    if options.out is None:
        parser.error("--out is needed")
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    gpu = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    with TemporaryDirectory(prefix="cachesvc-ptx-") as scratch:
        cases = Cases(Path(scratch))
        cases.run()
        cases.attention(options.pairs)
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    result = {"date": date, "gpu": gpu, "right": cases.right, "cases": cases.result}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "ptx.json").write_text(json.dumps(result, indent=1) + "\n")
    return 0 if cases.right else 1


if __name__ == "__main__":
    sys.exit(main())
