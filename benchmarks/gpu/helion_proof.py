"""Show what a start with kernels of Helion costs, cold and restored: ``helion_proof.py --out DIR``.

Needs torch, Triton and Helion, and what a registry needs. Every process is on a host of its own: another
HOME, TMPDIR and working directory, and empty folders.

    cold             Helion alone: it searches, and Triton compiles
    own folders      the same once more where that was
    folder copy      the folders of the first one, copied to another home
    builder          attached, on empty folders; publishes into a registry on loopback; its host is removed
    restored         twice: attached, no compiler on the PATH; a third one lists the programs that it starts
    one kernel       restored, one small kernel alone: the control of what follows
    differences      the same with something changed, each of `DIFFERENCES`: every one has to search

Without a GPU the kernel is one small one, on Helion's Pallas backend in its interpreter. Prints a table, and
writes ``helion.json``; exit status 0 if the restored processes searched and compiled nothing, took the
builder's configurations and gave the right numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[0:1] = [str(HERE.parent.parent), str(HERE.parent.parent / "client")]

from benchmarks.conditions import gpus  # noqa: E402
from benchmarks.gpu.proofs import Answer, Proof, prove  # noqa: E402
from benchmarks.hosts import Host, registry, trap, use_this_tree  # noqa: E402

NAME = "team/helion"
DIFFERENCES = {
    "index type": {"HELION_INDEX_DTYPE": "int64"},
    "fast math": {"HELION_FAST_MATH": "1"},
    "unchecked": {"HELION_AUTOTUNE_ACCURACY_CHECK": "0"},
    "algorithm": {"HELION_AUTOTUNER": "PatternSearch"},
    "effort": {"HELION_AUTOTUNE_EFFORT": "full", "HELION_AUTOTUNE_BUDGET_SECONDS": "120"},
    "reserved SMs": {"HELION_PERSISTENT_RESERVED_SMS": "8"},
    "specialisation": {"HELION_TRITON_DO_NOT_SPECIALIZE": "1"},
    "assertions": {"HELION_DEBUG_DTYPE_ASSERTS": "1"},
    "forced search": {"HELION_FORCE_AUTOTUNE": "1"},
    "called function": {"HELION_PROOF_HELPER": "cosine"},
    "shape": {"HELION_PROOF_ROWS": "16"},
    "dtype": {"HELION_PROOF_DTYPE": "bfloat16"},
}
"""What is another kernel, another space, or another search."""
SAME = {"constant": {"HELION_PROOF_FACTOR": "3.0"}}
"""What may be restored, and has to give other numbers: Helion hands a number of the module to the kernel."""
PALLAS = {
    "HELION_BACKEND": "pallas",
    "HELION_PALLAS_INTERPRET": "1",
    "HELION_PROOF_DEVICE": "cpu",
    "JAX_PLATFORMS": "cpu",
}
"""Variables of a machine without a GPU."""


class HelionProof(Proof):
    """Runs Helion. ``search``: variables of its search. ``registry_python``: the registry's interpreter.
    ``small``: one small kernel alone, and no starts without cachesvc."""

    def __init__(self, scratch: Path, search: dict[str, str], registry_python: str, small: bool) -> None:
        super().__init__(scratch)
        self.search, self.registry_python, self.small = search, registry_python, small
        if small:
            self.search = {**search, "HELION_PROOF_SMALL": "1"}

    def run(self, name: str, host: str, *_: str, compilers: bool = True, **variables: str) -> Answer:
        """Run the kernels on a host."""
        place = self.scratch / host
        file, traps = self.scratch / f"{name}.json", place / "traps"
        if not compilers:
            variables["PATH"] = str(trap(traps))
        Host(place).run(str(HERE / "helion_kernels.py"), str(file), **{**self.search, **variables})
        answer: Answer = json.loads(file.read_text())
        return self.keep(name, answer, traps, line)

    def all(self) -> None:
        """Run every case."""
        print(TITLES)
        if not self.small:
            self._alone()
        self._attached()

    def _alone(self) -> None:
        self.run("cold", "alone", **own_folders(self.scratch / "alone"))
        self.run("own folders", "alone", **own_folders(self.scratch / "alone"))
        for folder in ("inductor", "helion", "triton"):
            if (self.scratch / "alone" / folder).exists():
                shutil.copytree(self.scratch / "alone" / folder, self.scratch / "copy" / folder)
        shutil.rmtree(self.scratch / "alone")
        self.run("folder copy", "copy", **own_folders(self.scratch / "copy"))

    def _attached(self) -> None:
        with registry(self.scratch / "registry", self.registry_python) as served:
            service = self.publish_and_restore(served, NAME, HELION_PROOF_PUBLISH=NAME)
            small = {**service, "HELION_PROOF_SMALL": "1"}
            self.run("one kernel", "control", **small)
            with ThreadPoolExecutor(7) as pool:
                runs = {
                    name: pool.submit(self.run, name, name.replace(" ", "-"), **{**small, **changed})
                    for name, changed in (self.differences() | SAME).items()
                }
            for run in runs.values():
                run.result()

    def differences(self) -> dict[str, dict[str, str]]:
        """Return the differences that can be tried on this machine."""
        return DIFFERENCES if gpus() else {"index type": DIFFERENCES["index type"]}

    def wrong(self) -> list[str]:
        """Return what is not as it should be."""
        problems = []
        for name, answer in self.answers.items():
            if not all(result["close"] and result["repeats"] for result in answer["results"].values()):
                problems.append(f"{name}: outputs differ from eager's")
        problems += self.wrong_restores(("configurations", "results"))
        searches = {name: answer["observed"]["tuned_by_kinds"] for name, answer in self.answers.items()}
        if searches["one kernel"]:
            problems.append("one kernel: searched, so the differences show nothing")
        problems += [
            f"{name}: the entry's configuration was taken"
            for name in self.differences()
            if searches[name] != 1
        ]
        return problems


TITLES = f"{'start':18}{'first calls':>12}{'all':>8}{'searches':>10}{'Triton':>8}{'generated':>11}  outcome"


def line(name: str, answer: Answer) -> str:
    """Return the row of a table. A process that is not attached counts by Helion's own counters."""
    seconds, observed, own = answer["seconds"], answer["observed"], answer["helion"]
    attached = answer["state"] != "unused"
    searches = observed["tuned_by_kinds"] if attached else own.get("cache_miss", 0)
    kernels = observed["torch"]["triton_compilations"] if attached else "-"
    calls = sum(value for step, value in seconds.items() if step not in ("import", "all"))
    outcome = answer["state"] if attached else "not attached"
    return (
        f"{name:18}{calls:>12.2f}{seconds['all']:>8.1f}{searches:>10}{kernels:>8}"
        f"{answer['generated']:>11}  {outcome}"
    )


def own_folders(place: Path) -> dict[str, Any]:
    """Return variables that name Helion's, Triton's and Inductor's folders."""
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(place / "inductor"),
        "HELION_CACHE_DIR": str(place / "helion"),
        "TRITON_CACHE_DIR": str(place / "triton"),
    }


def main() -> int:
    """Run all cases. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "build")))
    parser.add_argument("--search-seconds", type=int, default=150, help="the longest search of a kernel")
    parser.add_argument("--effort", default="quick", help="Helion's effort")
    parser.add_argument(
        "--algorithm", default="RandomSearch", help="Helion's search; others need scikit-learn"
    )
    parser.add_argument("--precompile", default="fork", help="Helion's setting; empty for none")
    parser.add_argument("--small", action="store_true", help="one small kernel, and only what is attached")
    parser.add_argument("--registry-python", default=sys.executable, help="interpreter of the registry")
    options = parser.parse_args()
    use_this_tree()
    search = {
        "HELION_AUTOTUNE_EFFORT": options.effort,
        "HELION_AUTOTUNER": options.algorithm,
        "HELION_AUTOTUNE_BUDGET_SECONDS": str(options.search_seconds),
        # Helion's processes that compile ahead of a measurement end by a time-out on some machines.
        "HELION_AUTOTUNE_PRECOMPILE": options.precompile,
        **({} if gpus() else PALLAS),
    }
    packages = ("torch", "triton", "helion")
    file = options.out / "helion.json"

    def make(folder: Path) -> Proof:
        return HelionProof(folder, search, options.registry_python, options.small)

    return prove(make, file, packages, search=search)


if __name__ == "__main__":
    sys.exit(main())
