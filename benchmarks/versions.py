"""Show that models start without a compile on every supported version of torch.

For each version one run of `benchmarks/gpu/matrix.py` on the CPU, with the interpreter of that version:
``cachesvc warm`` proves each model, then fresh processes on empty hosts restore it, with no compiler on their
PATH. Asked of each restored process: nothing is compiled or tuned, no compiler is called, and its outputs are
the builder's to the bit; of the builder, that its outputs are close to eager's.

One model, BERT, also runs with PyTorch alone, over the folders that PyTorch itself filled: the ratio is the
first output of a restored process to that one's, medians of three. All models are small (one or two layers),
so that PyTorch's fixed costs weigh more than in a service.

Usage: ``python benchmarks/versions.py [--versions 2.8.0 2.15.0] [--models t5,unet]``. A version needs an
environment: ``make torch-env VERSION=2.8.0``. Without ``--versions`` it takes those that are there, and the
torch of this interpreter. A run of all models takes about six minutes for each version on two free cores. The
results of other versions and models stay in ``benchmarks/results/versions.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # so that `python FILE` works

from benchmarks.conditions import commit, now  # noqa: E402
from benchmarks.demo import aligned  # noqa: E402
from benchmarks.hosts import ROOT, Failed, exit_status, running_process  # noqa: E402

MODELS = {
    "bert": "17",
    "llama": "1",
    "vit": "16",
    "t5": "25",
    "mixtral": "26",
    "unet": "19b",
    "gat": "27",
    "training": "11",
    "autocast": "12",
    "dynamic shapes": "5",
    "graph breaks": "9",
    "custom operators": "21",
    "flex attention": "22",
}
"""Names of the models -> rows of the matrix. ``unet`` is of diffusers, ``gat`` of PyTorch Geometric; both
come from requirements/models.txt. The others are of transformers and of torch itself."""
TIMED = "bert"
"""The model that is compared with PyTorch's own warm start."""
RATIO = 0.7
"""The ratio that a restored start may have to PyTorch's own warm start."""
ENVIRONMENTS = ROOT / ".torch"
RESULTS = ROOT / "benchmarks" / "results" / "versions.json"
Answer = dict[str, Any]


def main() -> int:
    options = _options()
    report: Answer = json.loads(RESULTS.read_text()) if options.json == RESULTS and RESULTS.exists() else {}
    versions: Answer = report.setdefault("versions", {})
    measured: Answer = {}

    def measure(scratch: Path) -> None:
        libraries = _libraries(scratch / "models")
        for name, python in _interpreters(options):
            print(f"torch {name}", flush=True)
            out = (options.keep or scratch).absolute() / name
            measured[name] = _measure(python, options, out, libraries)
            before = versions.get(name, {}).get("models", {})
            versions[name] = measured[name] | {"models": before | measured[name]["models"]}
            report.update({"date": now(), "machine": {"cpus": os.cpu_count(), "cpu": platform.machine()}})
            report["versions"] = dict(sorted(versions.items(), key=lambda item: _numbers(item[0])))
            options.json.write_text(json.dumps(report, indent=1) + "\n")

    if status := exit_status(measure):
        return status
    print("\n".join(table(measured)))
    print(f"written: {options.json}")
    return int(any(problems(result) for result in measured.values()))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--versions", nargs="+", help="such as 2.8.0; by default all that are there")
    parser.add_argument("--models", help=f"of {', '.join(MODELS)}; separated by commas; by default all")
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS, help="the folder of environments")
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument(
        "--tracing",
        default="auto",
        choices=("auto", "always"),
        help="of the specs: whether frames may be given",
    )
    parser.add_argument("--keep", type=Path, help="a folder that gets what each run of the matrix wrote")
    options = parser.parse_args()
    options.models = options.models.split(",") if options.models else list(MODELS)
    if unknown := [name for name in options.models if name not in MODELS]:
        parser.error(f"--models {unknown[0]}: no such model (there are {', '.join(MODELS)})")
    return options


def _interpreters(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yield (version of torch, its interpreter). Raise ``Failed`` for a version that is not there."""
    here = _torch(sys.executable)
    found = {place.name: str(place / "bin" / "python") for place in options.environments.glob("[0-9]*.*.*")}
    found[here] = sys.executable
    for version in options.versions or sorted(found, key=_numbers):
        if version not in found:
            raise Failed(f"no environment with torch {version}: make torch-env VERSION={version}")
        yield version, found[version]


def _torch(python: str) -> str:
    """Return the release of an interpreter's torch, such as ``2.13.0``."""
    program = "import importlib.metadata; print(importlib.metadata.version('torch'))"
    return subprocess.check_output([python, "-c", program], text=True).strip().partition("+")[0]


def _libraries(folder: Path) -> Path:
    """Install the libraries of models that no environment has."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    command += ["--require-hashes", "-r", str(ROOT / "requirements" / "models.txt"), "--target", str(folder)]
    if subprocess.run(command, check=False).returncode:
        raise Failed("the libraries of requirements/models.txt could not be installed")
    return folder


def _measure(python: str, options: argparse.Namespace, out: Path, libraries: Path) -> Answer:
    """Run the matrix with an interpreter. Return what its models came to."""
    rows = ",".join(MODELS[name] for name in options.models)
    command = [python, str(ROOT / "benchmarks" / "gpu" / "matrix.py"), "--out", str(out), "--rows", rows]
    command += ["--tracing", options.tracing]
    command += ["--baselines", MODELS[TIMED], "--rounds", "3", "--budget", "7200", "--step", "600"]
    command += ["--jobs", "2", "--measure", "2", "--methods", "cold", "local first", "local settled", "ours"]
    environ = os.environ | {"MATRIX_MODELS": str(libraries), "CUDA_VISIBLE_DEVICES": ""}
    with running_process(command, env=environ, stdout=subprocess.DEVNULL, cwd=ROOT) as process:
        process.wait()
    if not (out / "matrix.json").exists():
        raise Failed(f"{python}: the matrix ended with status {process.returncode} and wrote nothing")
    matrix = json.loads((out / "matrix.json").read_text())
    facts = matrix.get("facts", {}).get("fingerprint", {})
    result = {
        "date": now(),
        "commit": commit(),
        "python": matrix["machine"]["python"],
        "torch": facts.get("torch"),
        "triton": facts.get("triton"),
        "models": {
            name: summarise(matrix["rows"][MODELS[name]]) | {"tracing": options.tracing, "date": now()}
            for name in options.models
        },
    }
    return result


def summarise(entry: Answer) -> Answer:
    """Return what a row of the matrix came to. The counts are the largest of its restored processes."""
    warm = entry.get("warm", {})
    restored = [run for name in ("ours", "ours again", "ours audited") for run in entry["runs"].get(name, [])]
    observed = [run["observed"] for run in restored if "observed" in run]
    result: Answer = {
        "warm": warm.get("status"),
        "processes": len(observed),
        "hit": bool(entry.get("hit")),
        "close to eager": bool(warm.get("against_eager", {}).get("close")),
        "equal": bool(observed) and all(run.get("against_builder", {}).get("equal") for run in restored),
        "compilers": len(entry.get("compilers_called", [])),
    }
    for name in ("compilations", "tuning_runs"):
        result[name] = max((each[name] for each in observed), default=None)
    first = entry["first"]
    if {"ours", "local settled"} <= first.keys():
        result |= {"first": first, "ratio": round(first["ours"] / first["local settled"], 3)}
    reasons = [*warm.get("reasons", []), *(run.get("error", "") for run in restored)]
    if told := [reason[-500:] for reason in reasons if reason]:
        result["reasons"] = told
    return result


def problems(version: Answer) -> list[str]:
    """Return a line for each model of a version that is not as it must be."""
    lines = []
    for name, model in version["models"].items():
        if not (model["hit"] and model["equal"] and model["close to eager"] and not model["compilers"]):
            lines.append(f"{name}: {model}"[:500])
        if model.get("ratio", 0) > RATIO:
            lines.append(f"{name}: {model['ratio']} of PyTorch's own warm start, more than {RATIO}")
    return lines


def table(versions: Answer) -> list[str]:
    """Return a line for each version, and one for each problem below the table."""
    rows = [
        ("torch", "Python", "models", "hit", "compilations", "compilers", "equal", "of PyTorch's warm start")
    ]
    for name, result in versions.items():
        models = result["models"].values()

        def count(key: str, models: Any = models) -> str:
            return str(sum(model[key] or 0 for model in models))

        ratios = ", ".join(str(model["ratio"]) for model in models if "ratio" in model)
        counts = map(count, ("hit", "compilations", "compilers", "equal"))
        rows.append((name, result["python"], str(len(models)), *counts, ratios or "-"))
    lines = list(aligned(rows))
    for name, result in versions.items():
        lines += [f"torch {name}, {problem}" for problem in problems(result)]
    return lines


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


if __name__ == "__main__":
    sys.exit(main())
