"""Show which entries the cache of the CUDA driver's compiler takes and refuses: ``ptx.py --out DIR``. Measure
what the cache saves.

The facts behind the kind `cuda`, from fresh processes. First without torch: one loads PTX of its own through
the driver, and its mapped files tell whether the driver loaded its compiler for that. Then cuDNN's attention
through torch: the first call with an empty cache, with a copy of a filled one, and with that in another
working directory. Needs a GPU. Writes ``ptx.json``; exit status 0 if all was as the client relies on.
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

from cachesvc_client.kinds.cuda.kind import KIND, RULES, CudaState  # noqa: E402

COMPILER = "libnvidia-ptxjitcompiler"
KERNEL = """.version 7.0
.target sm_70
.address_size 64
.visible .entry k(.param .u64 p){{ .reg .b64 %rd<2>; .reg .f32 %f<2>; ld.param.u64 %rd1,[p];
mov.f32 %f1, 0f{bits:08X}; st.global.f32 [%rd1], %f1; ret; }}
"""
SHAPES = ((16, 128, 128), (32, 128, 64))
"""(heads, length, width of a head) of Qwen3 and Llama in the matrix."""
Answer = dict[str, Any]
Change = Callable[[Path], object]


# The processes ---------------------------------------------------------------------------------


def load(late: str, full: str, numbers: list[int]) -> Answer:
    """Load a kernel for each number, which writes that number.

    ``late``: the folder is named after the driver was initialised. ``full``: the entries of that folder are
    then put into the named one."""
    driver = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: Any) -> None:
        if status := getattr(driver, name)(*arguments):
            raise SystemExit(f"{name}: status {status}")

    call("cuInit", 0)
    if late:
        os.environ[KIND.folder.variable] = late
    device, context, place = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuMemAlloc_v2", ctypes.byref(place), 4)
    if full:
        copy_entries(Path(full), Path(os.environ[KIND.folder.variable]))
    right, compiled = True, []
    begin = time.perf_counter()
    for number in numbers:
        bits = struct.unpack("<I", struct.pack("<f", float(number)))[0]
        module, kernel, value = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_float()
        call("cuModuleLoadData", ctypes.byref(module), KERNEL.format(bits=bits).encode() + b"\0")
        call("cuModuleGetFunction", ctypes.byref(kernel), module, b"k")
        arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(place), ctypes.c_void_p))
        call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)
        call("cuMemcpyDtoH_v2", ctypes.byref(value), place, 4)
        right = right and value.value == number
        compiled.append(COMPILER in Path("/proc/self/maps").read_text())
    return {"seconds": time.perf_counter() - begin, "right": right, "compiled": compiled}


def attend() -> Answer:
    """Measure the first and the second call of cuDNN's attention for each shape."""
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
    return {"first, second": seconds}


# The cases -------------------------------------------------------------------------------------


class Cases:
    """Runs the cases; each starts from a copy of a folder that a process has filled with the kernels 1 and
    2."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.full = scratch / "full"
        self.result: dict[str, Answer] = {}
        self.right = True

    def fresh(self, *words: str, folder: Path | None, work: str = "work", **variables: str) -> Answer:
        """Run a process of this script with a home of its own, in the working directory ``work``."""
        home = self.scratch / f"home-{len(list(self.scratch.iterdir()))}"
        home.mkdir()
        (self.scratch / work).mkdir(exist_ok=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_CACHE")}
        environment |= {"HOME": str(home), **variables}
        if folder is not None:
            environment[KIND.folder.variable] = str(folder)
        result = subprocess.run(
            [sys.executable, str(HERE / "ptx.py"), *words],
            env=environment,
            cwd=self.scratch / work,
            capture_output=True,
            text=True,
            check=False,
        )
        try:
            answer: Answer = json.loads(result.stdout.strip().splitlines()[-1])
        except (ValueError, IndexError):
            raise SystemExit(f"{words}: status {result.returncode}: {result.stderr[-800:]}") from None
        return answer

    def case(
        self, name: str, compiles: bool, change: Change | None = None, *, late: bool = False, **variables: str
    ) -> None:
        """Load the kernels 1 and 2: both are compiled, or neither."""
        folder = self._copied(change)
        words = ["--late", str(folder)] if late else []
        answer = self.fresh("--load", *words, "1", "2", folder=None if late else folder, **variables)
        self._keep(name, answer, answer["compiled"] == [compiles, compiles])

    def written(self, name: str, survive: bool, change: Change, *, put: bool = False) -> None:
        """Load kernel 1, which is there, then 9, which is not, and see whether the others are there
        afterwards.

        ``put``: the others are put in when the driver has been initialised."""
        folder = self._copied(change)
        words = ["--full", str(self.full)] if put else []
        answer = self.fresh("--load", *words, "1", "9", folder=folder)
        there = RULES.files_in(folder)
        answer |= {"others survive": RULES.files_in(self.full) <= there, "entries": len(there)}
        self._keep(name, answer, (answer["compiled"], answer["others survive"]) == ([False, True], survive))

    def _copied(self, change: Change | None) -> Path:
        folder = self.scratch / f"case-{len(self.result)}"
        shutil.copytree(self.full, folder)
        if change is not None:
            change(folder)
        return folder

    def _keep(self, name: str, answer: Answer, as_expected: bool) -> None:
        as_expected = as_expected and answer["right"]
        self.result[name] = answer | {"as expected": as_expected}
        self.right = self.right and as_expected
        print(f"{name:46} compiled {answer['compiled']!s:14} as expected {as_expected}", flush=True)

    def run(self) -> None:
        filled = self.fresh("--load", "1", "2", folder=self.full)
        assert filled["compiled"] == [True, True], filled
        self.case("as it was made", False)
        self.case("without its index", False, lambda folder: (folder / "index").unlink())
        self.case("beside an index of something else", False, lambda f: (f / "index").write_bytes(b"x" * 999))
        self.case("of mode 0600", False, lambda folder: each(folder, None))
        self.case("a byte changed in each", True, lambda folder: each(folder, changed))
        self.case("each cut", True, lambda folder: each(folder, lambda data: data[:200]))
        self.case("each empty", True, lambda folder: each(folder, lambda _: b""))
        self.case("the two swapped", True, swap)
        self.case("named after the driver was initialised", True, late=True)
        self.case("CUDA_CACHE_DISABLE=1", True, CUDA_CACHE_DISABLE="1")
        self.written("no index, and another is written", False, lambda folder: (folder / "index").unlink())
        self.written("the client's index, and another is written", True, own_index)
        self.written("the same, put after the driver's start", True, only_own_index, put=True)

    def attention(self, pairs: int) -> None:
        """Measure first calls with an empty folder and with a copy of an earlier process's, in turn."""
        source_folder = self.scratch / "attention"
        self.fresh("--attend", folder=source_folder)
        entries = RULES.files_in(source_folder)
        answers: dict[str, list[Answer]] = {"without": [], "with": [], "in another directory": []}
        for name, answers_of_name in (pair for _ in range(pairs) for pair in answers.items()):
            folder = self.scratch / f"{name}-{len(answers_of_name)}"
            CudaState().use_folder(folder)
            if name != "without":
                copy_entries(source_folder, folder)
            answer = self.fresh("--attend", folder=folder, work="another" if "another" in name else "work")
            answers_of_name.append(answer | {"new entries": len(RULES.files_in(folder) - entries)})
        self.right = self.right and not any(answer["new entries"] for answer in answers["with"])
        sizes = [(source_folder / path).stat().st_size for path in entries]
        self.result["attention"] = {**answers, "files": len(sizes), "bytes": sum(sizes)}
        for name, answers_of_name in answers.items():
            seconds_text = [
                {shape: round(both[0], 3) for shape, both in one["first, second"].items()}
                for one in answers_of_name
            ]
            print(
                f"attention {name:20} {seconds_text} {[one['new entries'] for one in answers_of_name]}",
                flush=True,
            )


def copy_entries(source: Path, target: Path) -> None:
    """Copy the entries without the index, as an install does."""
    for path in RULES.files_in(source):
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / path, target / path)


def own_index(folder: Path) -> None:
    (folder / "index").unlink()
    CudaState().use_folder(folder)


def only_own_index(folder: Path) -> None:
    shutil.rmtree(folder)
    CudaState().use_folder(folder)


def each(folder: Path, change: Callable[[bytes], bytes] | None) -> None:
    for path in RULES.files_in(folder):
        (folder / path).chmod(0o600)
        if change is not None:
            (folder / path).write_bytes(change((folder / path).read_bytes()))


def changed(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :]


def swap(folder: Path) -> None:
    one, other = (folder / path for path in sorted(RULES.files_in(folder)))
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--pairs", type=int, default=3)
    for name in ("--load", "--attend"):
        parser.add_argument(name, action="store_true", help="for the processes that it starts")
    for name in ("--late", "--full"):
        parser.add_argument(name, default="", help="the same")
    parser.add_argument("numbers", type=int, nargs="*")
    options = parser.parse_args()
    if options.load or options.attend:
        answer = load(options.late, options.full, options.numbers) if options.load else attend()
        print(json.dumps(answer), flush=True)
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
