"""Show that kernels that FlashInfer compiles are restored on a fresh host: ``kernel_jits.py --out DIR``.

A fresh process has FlashInfer build modules with nvcc and ninja, and publishes them to a registry on
loopback. Its folders are removed. Then fresh processes start by each method. Those that restore have another
HOME, TMPDIR and working directory, empty folders, and neither nvcc, ninja nor a C++ compiler on the PATH.
Prints a table and writes ``DIR/kernel_jits.json``; exit status 0 if all was as the client promises. Needs a
GPU, unless ``--no-launch`` has the processes load the modules and launch no kernel.
"""

from __future__ import annotations

import argparse
import ctypes.util
import datetime
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
ROOT = HERE.parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "client")]

NAME = "bench/kernels"
MODULES = ("silu_and_mul", "rmsnorm", "single_decode", "single_prefill")
METHODS = {
    "cold": "a fresh host; publishes",
    "in place": "the host of a cold start again, without cachesvc",
    "copied": "a fresh host with a copy of FlashInfer's folder of a cold start, with its times",
    "restored": "a fresh host without compilers, cachesvc",
}
COUNTED = ("nvcc", "ninja", "c++", "g++", "gcc")
"""Programs that are counted from outside: each is a script that notes its call and runs the real one."""
TRAPS = ("ninja", "ld", "as", "ptxas", "cicc", "cudafe++", "fatbinary", "cc1plus", "clang", "clang++")
"""Programs on the PATH of a host without compilers, which note their call and fail. A script in the place of
nvcc or of a C++ compiler would be another compiler to cachesvc, and an image without compilers has none."""
Answer = dict[str, Any]


# The process that is measured ------------------------------------------------------------------


def process(modules: list[str], launch: bool, publish: bool) -> None:
    """Have FlashInfer load modules and run each, and print JSON: seconds, digests and what was compiled."""
    attached = bool(os.environ.get("CACHESVC_NAME"))
    from cachesvc_client.hooks import counters
    from cachesvc_client.wire.codec import plain

    observer = counters.start(audit=True)
    import cachesvc_client

    if attached:
        cachesvc_client.attach(os.environ["CACHESVC_NAME"])
    began = time.monotonic()
    import torch

    answer: Answer = {"outputs": {}, "seconds": {"import torch": round(time.monotonic() - began, 3)}}
    began = time.monotonic()
    import flashinfer

    answer["seconds"]["import flashinfer"] = round(time.monotonic() - began, 3)
    for module in modules:
        began = time.monotonic()
        answer["outputs"][module] = _run(module, torch, flashinfer) if launch else _load(module, torch)
        answer["seconds"][module] = round(time.monotonic() - began, 3)
    if publish:
        cachesvc_client.publish(NAME, target="kernels")
    report = plain(cachesvc_client.report()) if attached else {}
    observed = observer.snapshot()
    answer |= {name: report[name] for name in ("state", "reasons", "kinds", "compared") if name in report}
    answer["processes"] = [program for program in observed.processes if counters.is_compiler(program)]
    print(json.dumps(answer), flush=True)


def _run(module: str, torch: Any, flashinfer: Any) -> Answer:
    """Run one function of FlashInfer's. Return the digest of its output, and the largest difference from the
    same in float32 by PyTorch."""
    generator = torch.Generator("cuda").manual_seed(7)

    def random(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator, device="cuda").to(torch.float16)

    if module == "silu_and_mul":
        x = random(64, 2048)
        answer, expected = flashinfer.silu_and_mul(x), _silu(torch, x.float())
    elif module == "rmsnorm":
        x, weight = random(64, 1024), random(1024)
        answer = flashinfer.rmsnorm(x, weight)
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
        expected = x.float() * scale * weight.float()
    elif module == "single_decode":
        q, k, v = random(8, 128), random(256, 8, 128), random(256, 8, 128)
        answer = flashinfer.single_decode_with_kv_cache(q, k, v)
        expected = _attention(torch, q[None], k, v)[0]
    else:
        q, k, v = random(128, 8, 128), random(256, 8, 128), random(256, 8, 128)
        answer = flashinfer.single_prefill_with_kv_cache(q, k, v, causal=False, backend="fa2")
        expected = _attention(torch, q, k, v)
    torch.cuda.synchronize()
    digest = hashlib.sha256(answer.cpu().numpy().tobytes()).hexdigest()
    error = float((answer.float() - expected).abs().max())
    return {"digest": digest, "error": round(error, 5), "right": error < 0.03}


def _silu(torch: Any, x: Any) -> Any:
    left, right = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(left) * right


def _attention(torch: Any, q: Any, k: Any, v: Any) -> Any:
    heads = [tensor.float().transpose(0, 1) for tensor in (q, k, v)]
    return torch.nn.functional.scaled_dot_product_attention(*heads).transpose(0, 1)


def _load(module: str, torch: Any) -> Answer:
    """Have FlashInfer load the library of a module. Return the name of a function that it has."""
    from flashinfer.jit import activation, norm
    from flashinfer.jit.attention import modules as attention

    types = (torch.float16, torch.float16, torch.float16)
    specifications: Mapping[str, tuple[Callable[[], Any], str]] = {
        "silu_and_mul": (lambda: activation.gen_act_and_mul_module("silu"), "silu_and_mul"),
        "rmsnorm": (norm.gen_norm_module, "rmsnorm"),
        "single_decode": (
            lambda: attention.gen_single_decode_module(*types, 128, 128, 0, False, False),
            "run",
        ),
        "single_prefill": (
            lambda: attention.gen_single_prefill_module("fa2", *types, 128, 128, 0, False, False, False),
            "run",
        ),
    }
    make, function = specifications[module]
    loaded = make().build_and_load()
    return {
        "digest": f"{function} {'is there' if getattr(loaded, function) else 'is missing'}",
        "right": True,
    }


# Hosts -----------------------------------------------------------------------------------------


class Bench:
    """Starts processes on hosts below ``folder``. ``toolkit``: the folder of CUDA that builders use."""

    def __init__(self, folder: Path, options: argparse.Namespace, served: Any) -> None:
        self._folder, self._options, self._registry = folder, options, served
        self._toolkit = make_toolkit(folder / "cuda")
        self._programs = make_programs(folder / "programs", self._toolkit)
        self._number = 0

    def start(self, method: str) -> Answer:
        """Start a process by a method, on a host of its own. Return its answer and what was counted."""
        self._number += 1
        host = self._folder / f"host-{self._number}"
        if method == "in place":
            host = self._folder / "cold"
        elif method == "copied":
            shutil.copytree(self._folder / "cold" / "home" / ".cache", host / "home" / ".cache")
        return self._process(method, host)

    def publish(self) -> Answer:
        """Build on a fresh host and publish; then the host is gone."""
        answer = self._process("cold", self._folder / "builder", publish=True)
        shutil.rmtree(self._folder / "builder")
        return answer

    def cold(self) -> Answer:
        """Build on a fresh host without cachesvc, whose folders stay."""
        return self._process("cold", self._folder / "cold")

    def _process(self, method: str, host: Path, publish: bool = False) -> Answer:
        from benchmarks.hosts import Failed, Host

        log = host / "called"
        host.mkdir(parents=True, exist_ok=True)
        log.write_text("")
        variables = {"KERNEL_JITS_CALLED": str(log), "FLASHINFER_USE_CUDA_NORM": "1"}
        variables |= {"PATH": str(self._programs), "CUDA_HOME": str(self._toolkit)}
        if method == "restored":
            none = self._folder / "no-cuda"
            variables |= {"PATH": str(make_traps(host / "traps")), "CUDA_HOME": str(none)}
        if publish or method == "restored":
            variables |= self._registry.service | {
                "CACHESVC_NAME": NAME,
                "CACHESVC_DEADLINE": "60",
            }
        if publish:
            variables |= {"CACHESVC_MODE": "readwrite", "CACHESVC_PUBLISH_AFTER": "0"}
            variables["CACHESVC_SIGNING_KEY"] = self._registry.signing_key
        if self._options.architectures:
            variables["FLASHINFER_CUDA_ARCH_LIST"] = self._options.architectures
        command = [sys.executable, str(HERE), "--process", *self._options.modules]
        command += ["--no-launch"] if self._options.no_launch else []
        command += ["--publish"] if publish else []
        begin = time.monotonic()
        place = Host(host)
        result = subprocess.run(
            command, env=place.environment() | variables, cwd=host / "work", capture_output=True, text=True
        )
        wall = round(time.monotonic() - begin, 2)
        if result.returncode:
            raise Failed(
                f"{method}: status {result.returncode}\n{result.stdout[-1500:]}{result.stderr[-3000:]}"
            )
        answer: Answer = json.loads(result.stdout.strip().splitlines()[-1])
        calls = Counter(line.split()[0] for line in log.read_text().splitlines() if not _only_asks(line))
        answer |= {"method": method, "wall": wall, "calls": dict(calls)}
        _say(f"{method}: {wall} s, called {dict(calls)}, {answer.get('state')} {answer.get('reasons')}")
        return answer


def _only_asks(line: str) -> bool:
    """Return whether a program was called for its version, or for its records of a build."""
    return "--version" in line or line.startswith("ninja -t ")


def make_toolkit(folder: Path) -> Path:
    """Make a folder of CUDA whose nvcc is counted, with a ``libcuda`` to link with, which the real one may
    lack."""
    real = Path(os.path.realpath(os.environ.get("CUDA_HOME") or "/usr/local/cuda"))
    if not (real / "bin" / "nvcc").exists():
        sys.exit(f"error: no nvcc in {real}/bin: set CUDA_HOME")
    (folder / "bin").mkdir(parents=True)
    for entry in real.iterdir():
        if entry.name not in ("bin", "lib64"):
            (folder / entry.name).symlink_to(entry)
    for entry in (real / "bin").iterdir():
        if entry.name != "nvcc":
            (folder / "bin" / entry.name).symlink_to(entry)
    _counting(folder / "bin" / "nvcc", real / "bin" / "nvcc")
    (folder / "lib64" / "stubs").mkdir(parents=True)
    for entry in (real / "lib64").iterdir():
        if entry.name != "stubs":
            (folder / "lib64" / entry.name).symlink_to(entry)
    stub = real / "lib64" / "stubs" / "libcuda.so"
    (folder / "lib64" / "stubs" / "libcuda.so").symlink_to(stub if stub.exists() else _driver(folder))
    return folder


def _driver(folder: Path) -> Path:
    """Return the driver's library; where there is none, a library of its name without functions."""
    places = ("/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/cuda/compat")
    for place in places:
        if Path(place, "libcuda.so.1").exists():
            return Path(place, "libcuda.so.1")
    if name := ctypes.util.find_library("cuda"):
        listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
        for line in listed.splitlines():
            if line.strip().startswith(f"{name} "):
                return Path(line.rpartition(" => ")[2])
    empty = folder / "libcuda.so.1"
    command = ["gcc", "-shared", "-x", "c", "/dev/null", "-o", str(empty), "-Wl,-soname,libcuda.so.1"]
    subprocess.run(command, check=True)
    return empty


def make_programs(folder: Path, toolkit: Path) -> Path:
    """Make a PATH with the programs of this one, of which the compilers are counted."""
    folder.mkdir(parents=True)
    for place in os.environ.get("PATH", os.defpath).split(os.pathsep):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            if program.name not in COUNTED and not (folder / program.name).is_symlink():
                (folder / program.name).symlink_to(program)
    (folder / "nvcc").symlink_to(toolkit / "bin" / "nvcc")
    for name in set(COUNTED) - {"nvcc"}:
        if real := shutil.which(name):
            _counting(folder / name, Path(real))
    if not (folder / "ninja").exists():
        sys.exit("error: no ninja on the PATH")
    return folder


def _counting(script: Path, program: Path) -> None:
    script.write_text(f'#!/bin/sh\necho "{script.name} $*" >>"$KERNEL_JITS_CALLED"\nexec {program} "$@"\n')
    script.chmod(0o755)


def make_traps(folder: Path) -> Path:
    """Make a PATH with none of the compilers, where `TRAPS` note their call and fail."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in TRAPS:
        (folder / name).write_text(f'#!/bin/sh\necho "{name} $*" >>"$KERNEL_JITS_CALLED"\nexit 1\n')
        (folder / name).chmod(0o755)
    return folder


# The run ---------------------------------------------------------------------------------------


def measure(folder: Path, options: argparse.Namespace) -> bool:
    """Publish, start by each method in rounds, write the results. Return whether all was as promised."""
    from benchmarks.hosts import registry

    result: Answer = {**_conditions(options), "methods": METHODS, "modules": options.modules, "starts": []}

    def keep(answer: Answer) -> Answer:
        result["starts"].append(answer)
        (options.out / "kernel_jits.json").write_text(json.dumps(result, indent=1))
        return answer

    with registry(folder / "registry", options.registry_python) as served:
        bench = Bench(folder, options, served)
        published = keep(bench.publish() | {"published": True})
        for _ in range(options.rounds):
            keep(bench.start("restored"))
        if not options.only_restored:
            keep(bench.cold())
            for _ in range(options.rounds):
                for method in ("in place", "copied"):
                    keep(bench.start(method))
    wrong = list(complaints(published, result["starts"], options.modules))
    result["wrong"] = wrong
    (options.out / "kernel_jits.json").write_text(json.dumps(result, indent=1))
    print(table(result["starts"], options.modules))
    print("\n".join(f"WRONG: {text}" for text in wrong) or "all as promised")
    return not wrong


def complaints(published: Answer, starts: list[Answer], modules: list[str]) -> list[str]:
    """Return what was not as the client promises."""
    wrong = []
    if published["state"] != "miss" or not published["calls"].get("nvcc"):
        wrong.append(f"the builder: {published['state']}, {published['calls']}")
    for start in starts:
        for module in modules:
            if not start["outputs"][module]["right"]:
                wrong.append(f"{start['method']}: {module} is wrong: {start['outputs'][module]}")
            if start["outputs"][module]["digest"] != published["outputs"][module]["digest"]:
                wrong.append(f"{start['method']}: {module} has another output than the builder's")
        if start["method"] == "restored":
            if start["calls"] or start["processes"]:
                wrong.append(f"restored: called {start['calls']}, {start['processes']}")
            if start["state"] != "hit" or start["reasons"]:
                wrong.append(f"restored: {start['state']}, {start['reasons']}")
    return wrong


def table(starts: list[Answer], modules: list[str]) -> str:
    """Return the starts as a table of Markdown."""
    lines = [
        "| start | nvcc | ninja | " + " | ".join(f"{module}, s" for module in modules) + " | process, s |"
    ]
    lines.append("|---|" + "---:|" * (len(modules) + 3))
    for start in starts:
        what = "cold, published" if start.get("published") else start["method"]
        calls = [str(start["calls"].get(name, 0)) for name in ("nvcc", "ninja")]
        seconds = [f"{start['seconds'][module]:.2f}" for module in modules]
        lines.append(f"| {' | '.join([what, *calls, *seconds, format(start['wall'], '.1f')])} |")
    return "\n".join(lines)


def _conditions(options: argparse.Namespace) -> Answer:
    import flashinfer
    import torch

    there = torch.cuda.is_available()
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "gpu": torch.cuda.get_device_name(0) if there else None,
        "torch": torch.__version__,
        "flashinfer": flashinfer.__version__,
        "launched": not options.no_launch,
    }


def _say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for the results")
    parser.add_argument("--modules", nargs="+", choices=MODULES, default=["silu_and_mul", "rmsnorm"])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--no-launch", action="store_true", help="load the modules, launch no kernel")
    parser.add_argument("--only-restored", action="store_true", help="leave out FlashInfer's own warm starts")
    parser.add_argument("--architectures", default="", help="FLASHINFER_CUDA_ARCH_LIST, without a GPU: 9.0a")
    parser.add_argument("--registry-python", default=sys.executable, help="interpreter of the registry")
    parser.add_argument("--process", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--publish", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    options = _options()
    if options.process:
        process(options.process, not options.no_launch, options.publish)
        return 0
    if options.out is None:
        sys.exit("error: name a folder for the results: --out DIR")
    from benchmarks.hosts import exit_status, use_this_tree

    options.out.mkdir(parents=True, exist_ok=True)
    use_this_tree()
    right: list[bool] = []
    return exit_status(lambda folder: right.append(measure(folder, options))) or int(right != [True])


if __name__ == "__main__":
    sys.exit(main())
