"""What the keys of compiled code take from a GPU: on the GPU, and on a machine without one.

    python benchmarks/gpu/device_facts.py --out DIR                    on the GPU
    python benchmarks/gpu/device_facts.py --out DIR --device FILE      without it: FILE is description.json
    python benchmarks/gpu/device_facts.py --compare DIR DIR            keys of both, as a table

Writes ``description.json`` (on the GPU) and ``facts.json``: versions and digests that are in every key, and
for each row of `gpuless_models` the keys of AOTAutograd and of FX with what they are made of, Triton's keys
with the digests of the kernels, and the choices that were tuned. Needs torch 2.11 for CUDA with its Triton,
and this tree; cachesvc's hooks are not in place, so the keys are PyTorch's own. Each row has its own process.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TREE = HERE.parent.parent
sys.path[0:1] = [str(HERE), str(TREE), str(TREE / "client")]

ROW_SECONDS = 200
"""Seconds after which a row is given up."""


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", type=Path, help="the description of the absent GPU")
    parser.add_argument("--rows", default="")
    parser.add_argument("--jobs", type=int, default=1, help="rows at once")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--compare", type=Path, nargs=2)
    options = parser.parse_args()
    if options.compare:
        return compare(*options.compare)
    if options.row:
        print(json.dumps(measure_row(options.row, options.device)))
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.device:
        from cachesvc.warm.gpuless import description
        from cachesvc_client.wire.codec import plain

        text = json.dumps(plain(description.describe()), indent=1, sort_keys=True) + "\n"
        (options.out / "description.json").write_text(text)
        print(text, flush=True)
    facts = machine_facts(options.device)
    print(json.dumps(facts, indent=1), flush=True)
    rows = measure_rows(options)
    (options.out / "facts.json").write_text(json.dumps({"machine": facts, "rows": rows}))
    return 0


def measure_rows(options: argparse.Namespace) -> dict[str, Any]:
    """Measure each row in a process with empty folders, several at once."""
    from gpuless_models import ROWS

    names = options.rows.split(",") if options.rows else list(ROWS)
    with ThreadPoolExecutor(options.jobs) as pool:
        rows = pool.map(functools.partial(start_row, options.device), names)
        return dict(zip(names, rows, strict=True))


def start_row(device: Path | None, name: str) -> dict[str, Any]:
    """Measure a row in a process of its own, and print its keys."""
    command = [sys.executable, __file__, "--row", name, *(["--device", str(device)] if device else [])]
    begin, errors = time.monotonic(), ""
    row: dict[str, Any]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ROW_SECONDS, check=False)
        errors = done.stderr[-2000:]
        row = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
        row = {"error": f"{type(error).__name__}: the process ended", "trace": errors}
    keys = [item["key"][:12] for item in row.get("fx", [])]
    print(name, f"{time.monotonic() - begin:.1f} s", keys, row.get("error", "")[:300], flush=True)
    return row


def machine_facts(device: Path | None) -> dict[str, Any]:
    """Return versions, and the digests that are in every key."""
    if device:
        stand_in(device)
    import platform

    import torch
    import triton
    from torch._inductor.codecache import CacheBase, torch_key
    from torch._inductor.runtime.compile_tasks import _set_triton_ptxas_path
    from torch._inductor.runtime.triton_compat import triton_key

    _set_triton_ptxas_path()
    from triton.backends.nvidia.compiler import get_ptxas, get_ptxas_version

    facts: dict[str, Any] = {
        "python": sys.version,
        "platform": platform.platform(),
        "libc": os.confstr("CS_GNU_LIBC_VERSION"),
        "architecture": platform.architecture(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "torch_key": torch_key().hex(),
        "triton_key": hashlib.sha256(triton_key().encode()).hexdigest(),
        "triton_key_parts": [part[:20] for part in triton_key().split("-")],
        "ptxas": get_ptxas(90).path,
        "ptxas_version": get_ptxas_version(90),
        "system": CacheBase.get_system(),
        "arch_list": torch.cuda.get_arch_list(),
        "bf16": torch.cuda.is_bf16_supported(),
        "variables": {
            key: value for key, value in os.environ.items() if key.startswith(("TORCH", "TRITON", "CUDA"))
        },
    }
    if not device:
        facts["cudnn"] = torch.backends.cudnn.version()
        facts["attention"] = attention_choices()
    for package in ("transformers", "numpy", "sympy"):
        with contextlib.suppress(ImportError):
            facts[package] = __import__(package).__version__
    return facts


def attention_choices() -> dict[str, int]:
    """Return which of its kernels PyTorch's attention takes here (a number of ``SDPBackend``), by dtype,
    size of a head, length, and whether it is causal or has a mask."""
    import torch

    answers = {}
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for size, length, causal, masked in (
            *((size, 128, causal, False) for size in (32, 64, 72, 128, 256) for causal in (True, False)),
            *((64, length, False, False) for length in (1, 77, 2048)),
            *((64, 128, False, True), (128, 128, False, True)),
        ):
            q = torch.empty(2, 4, length, size, device="cuda", dtype=dtype)
            mask = torch.zeros(2, 1, length, length, device="cuda", dtype=dtype) if masked else None
            name = f"{str(dtype)[6:]} head {size} length {length} causal {causal} mask {masked}"
            with torch.no_grad():
                answers[name] = int(torch._fused_sdp_choice(q, q, q, mask, 0.0, causal))
    return answers


def stand_in(device: Path) -> Any:
    """Put the stand-in of the absent GPU in place."""
    from cachesvc.warm.gpuless import description
    from cachesvc.warm.gpuless import stand_in as module

    return module.install(description.read(device))


def measure_row(name: str, device: Path | None) -> dict[str, Any]:
    """Compile one row in this process, and return its keys and files, or the error."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        os.environ.pop("TRITON_CACHE_DIR", None)
        replacement = stand_in(device) if device else None
        keys = watch_keys()
        answer: dict[str, Any] = {}
        begin = time.monotonic()
        try:
            answer["outputs"] = call_row(name, replacement)
        except Exception as error:  # noqa: BLE001 - the error is the result of this row
            text = " ".join(str(error).split())[:600]
            answer |= {"error": f"{type(error).__name__}: {text}", "trace": traceback.format_exc()[-3000:]}
        import torch._dynamo.utils

        answer["seconds"] = round(time.monotonic() - begin, 2)
        counters = torch._dynamo.utils.counters
        answer["counters"] = {group: dict(values) for group, values in counters.items() if values}
        answer["untimed"] = sorted(replacement.decisions.untimed) if replacement else []
        return {**answer, **keys, "files": list_files(Path(folder))}


def watch_keys() -> dict[str, list[Any]]:
    """Return the list that the keys of this process will be in, with the lines that they are made of."""
    import torch._functorch._aot_autograd.autograd_cache as autograd
    from torch._inductor import codecache
    from torch._inductor.runtime import triton_heuristics

    keys: dict[str, list[Any]] = {"aot": [], "fx": [], "kernels": []}

    def watch(module: Any, function: str, name: str) -> None:
        original = getattr(module, function)

        def watched(*args: Any, **kwargs: Any) -> Any:
            key, lines = original(*args, **kwargs)
            keys[name].append({"key": key, "lines": lines})
            return key, lines

        setattr(module, function, watched)

    watch(codecache, "compiled_fx_graph_hash", "fx")
    watch(autograd, "autograd_cache_key", "aot")
    make = triton_heuristics.CachingAutotuner._make_launchers

    def make_launchers(autotuner: Any) -> None:
        make(autotuner)
        for result in autotuner.compile_results:
            kernel = result.kernel
            keys["kernels"].append(
                {
                    "name": autotuner.inductor_meta.get("kernel_name"),
                    "key": kernel.hash,
                    "config": str(result.config),
                    "registers": getattr(kernel, "n_regs", None),
                    "spills": getattr(kernel, "n_spills", None),
                    "static": type(kernel).__name__,
                }
            )

    triton_heuristics.CachingAutotuner._make_launchers = make_launchers
    return keys


def call_row(name: str, replacement: Any) -> list[str]:
    """Build and call a row's model. Return shapes and sums of its outputs."""
    import gpuless_models
    import torch

    factory, how, grad = gpuless_models.ROWS[name]
    torch.manual_seed(0)
    module, inputs = getattr(gpuless_models, factory)()
    module.eval()
    if replacement:
        replacement.place(module)
        inputs = {key: replacement.move(value) for key, value in inputs.items()}
    else:
        module.to("cuda")
        inputs = {key: value.to("cuda") for key, value in inputs.items()}
    mode = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode, "grad": torch.enable_grad}[grad]
    with replacement.calls() if replacement else contextlib.nullcontext(), mode():
        compiled = torch.compile(module, **how)
        result = compiled(**inputs)
        outputs = [item for item in flat(result) if isinstance(item, torch.Tensor)]
        if grad == "grad":
            outputs[0].float().mean().backward()
    sums = [] if replacement else [float(item.double().sum()) for item in outputs]
    return [f"{tuple(item.shape)} {item.dtype} {item.device}" for item in outputs] + [repr(sums)]


def flat(value: Any) -> list[Any]:
    """Return the items of an output."""
    if isinstance(value, dict) or hasattr(value, "to_tuple"):
        return [inner for item in value.values() for inner in flat(item)]
    return [inner for item in value for inner in flat(item)] if isinstance(value, (tuple, list)) else [value]


def list_files(folder: Path) -> dict[str, Any]:
    """Return digests of kernels, texts of tuning results, and the text of generated code."""
    files: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix in (".cubin", ".so"):
            files[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif path.suffix in (".best_config", ".py"):
            files[name] = path.read_text()
        elif path.is_file():
            files[name] = path.stat().st_size
    return files


def compare(with_gpu: Path, without: Path) -> int:
    """Print for each row whether the keys and kernels of both are the same, and the first differences."""
    sides = [json.loads((folder / "facts.json").read_text()) for folder in (with_gpu, without)]
    for name in sides[0]["machine"]:
        values = [side["machine"].get(name) for side in sides]
        if values[0] != values[1]:
            print("machine:", name, *values, sep="\n    ")
    for name, here in sides[0]["rows"].items():
        other = sides[1]["rows"].get(name)
        if other is not None:
            print(f"{name}: {'; '.join(differences(here, other))}")
    return 0


def differences(here: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return what both sides of a row have in common and what not."""
    found = [f"without a GPU: {other['error']}"] if other.get("error") else []
    found += [f"on the GPU: {here['error']}"] if here.get("error") else []
    for layer in ("aot", "fx"):
        keys = [[item["key"] for item in side.get(layer, [])] for side in (here, other)]
        found.append(
            f"{layer} {'same' if keys[0] == keys[1] else 'differs'} ({len(keys[0])}, {len(keys[1])})"
        )
        for mine, theirs in zip(here.get(layer, []), other.get(layer, []), strict=False):
            lines = [line for line in theirs["lines"] if line not in mine["lines"]]
            found += [f"\n    {line[:300]}" for line in lines[:4]]
    cubins = [
        {
            path.split("/")[-1]: digest
            for path, digest in side.get("files", {}).items()
            if path.endswith(".cubin")
        }
        for side in (here, other)
    ]
    same = sum(cubins[0].get(name) == digest for name, digest in cubins[1].items())
    found.append(f"kernels {same} of {len(cubins[1])} the same; {len(cubins[0])} on the GPU")
    return found


if __name__ == "__main__":
    sys.exit(main())
