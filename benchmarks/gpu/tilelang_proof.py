"""Show what a start with TileLang's kernels for a GPU costs: ``tilelang_proof.py --out DIR``.

Needs torch, TileLang, a CUDA toolkit, and what a registry needs. Every process is on a host of its own:
another HOME, TMPDIR and working directory, and empty folders.

    cold             TileLang alone: nvcc and a C++ compiler make each kernel
    own folder       the same once more where that was
    folder copy      the folder of the first one, copied to another home
    builder          attached, on empty folders; publishes into a registry on loopback; its host is removed
    restored         twice: attached, no compiler on the PATH and no toolkit; a third one lists its programs
    other tile       restored, the matrix product with another tile: TileLang compiles that one
    own machine code attached, in TileLang's folder of a cold start without its kernels: nothing is published

Without a GPU the kernels are compiled for ``sm_90a``, and none is launched. Prints a table, and writes
``tilelang.json``; exit status 0 if the restored processes compiled nothing and gave the builder's bits.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[0:1] = [str(HERE.parent.parent), str(HERE.parent.parent / "client")]

from benchmarks.conditions import gpus  # noqa: E402
from benchmarks.gpu.proofs import Answer, Proof, prove, publishing  # noqa: E402
from benchmarks.hosts import Host, registry, trap, use_this_tree  # noqa: E402

NAME = "team/tilelang"
NO_TOOLKIT = {"CUDA_HOME": "/nonexistent"}
"""Variables of a host without a CUDA toolkit, on a machine that has one."""
KERNELS = ("matmul", "softmax")


class TileLangProof(Proof):
    """Runs TileLang. ``target``: its own. ``registry_python``: the registry's interpreter."""

    def __init__(self, scratch: Path, target: str, registry_python: str) -> None:
        super().__init__(scratch)
        self.target, self.registry_python = target, registry_python

    def run(self, name: str, host: str, *arguments: str, compilers: bool = True, **variables: str) -> Answer:
        """Run the kernels on a host."""
        place = self.scratch / host
        traps = place / "traps"
        if not compilers:
            variables |= {"PATH": str(trap(traps)), **NO_TOOLKIT}
        program = str(HERE / "tilelang_kernels.py")
        out, _ = Host(place).run(program, f"target={self.target}", *arguments, **variables)
        answer: Answer = json.loads(out.strip().splitlines()[-1])
        return self.keep(name, answer, traps, line)

    def all(self) -> None:
        """Run every case."""
        print(TITLES)
        self.run("cold", "alone")
        self.run("own folder", "alone")
        own = Path("home", ".tilelang")
        shutil.copytree(self.scratch / "alone" / own, self.scratch / "copy" / own)
        shutil.copytree(self.scratch / "alone" / own, self.scratch / "code" / own)
        shutil.rmtree(self.scratch / "alone")
        self.run("folder copy", "copy")
        with registry(self.scratch / "registry", self.registry_python) as served:
            service = self.publish_and_restore(served, NAME, f"publish={NAME}")
            self.run("other tile", "service4", "tile=32", **service)
            for kernels in (self.scratch / "code" / own).rglob("kernels"):
                shutil.rmtree(kernels)
            other = {**service, **publishing(served), "CACHESVC_NAME": f"{NAME}-code"}
            self.run("own machine code", "code", f"publish={NAME}-code", **other)

    def wrong(self) -> list[str]:
        """Return what is not as it should be."""
        problems = []
        for name, answer in self.answers.items():
            if not all(answer["right"].values()):
                problems.append(f"{name}: outputs differ from PyTorch's: {answer['right']}")
        problems += self.wrong_restores(("results",))
        if self.answers["other tile"]["observed"]["counts"] != {"tilelang": {"compilations": 1}}:
            problems.append("other tile: not exactly one kernel was compiled")
        code = self.answers["own machine code"]
        if code["published"] or code["observed"]["counts"] != {"tilelang": {"compilations": len(KERNELS)}}:
            problems.append("own machine code: published, or not taken by TileLang")
        return problems


TITLES = f"{'start':18}{''.join(f'{name:>10}' for name in KERNELS)}{'compiled':>10}{'compilers':>11}  outcome"


def line(name: str, answer: Answer) -> str:
    """Return the row of a table. A process that is not attached counts nothing."""
    observed, attached = answer["observed"], answer["state"] != "unused"
    seconds = "".join(f"{answer['seconds'][kernel]:>10.2f}" for kernel in KERNELS)
    compiled = observed["counts"].get("tilelang", {}).get("compilations", 0) if attached else "-"
    compilers = observed["compiler_processes"] if attached else "-"
    outcome = answer["state"] if attached else "not attached"
    return f"{name:18}{seconds}{compiled:>10}{compilers:>11}  {outcome}"


def main() -> int:
    """Run all cases. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "build")))
    parser.add_argument("--registry-python", default=sys.executable, help="interpreter of the registry")
    options = parser.parse_args()
    use_this_tree()
    target = "cuda" if gpus() else "sm_90a"
    packages = ("torch", "tilelang", "apache-tvm-ffi")

    def make(folder: Path) -> Proof:
        return TileLangProof(folder, target, options.registry_python)

    return prove(make, options.out / "tilelang.json", packages)


if __name__ == "__main__":
    sys.exit(main())
