"""Show that a fresh host does not tune kernels under ``triton.autotune``: ``tuned_proof.py --out DIR``.

Every process is on a host of its own: another HOME, TMPDIR and working directory, and empty folders.

    builder          attached, on empty folders; publishes into a registry on loopback; its host is removed
    restored         twice: attached, no compiler on the PATH; a third one lists the programs that it starts
    other code       the kernels multiply by another constant: every form has to be tuned

Prints a table of the forms, and writes ``tuned.json``; exit status 0 if all is as it should be: a
restored form tunes only if Triton itself keeps no timings for it (`NEVER_KEPT`). Needs a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[0:1] = [str(HERE.parent.parent), str(HERE.parent.parent / "client")]

from benchmarks.gpu.proofs import Answer, Proof, prove  # noqa: E402
from benchmarks.hosts import Host, registry, trap, use_this_tree  # noqa: E402

NAME = "team/tuned"
NEVER_KEPT = ("hook of a configuration",)
"""Triton keeps no timings where a configuration has a hook, since it cannot write the hook down."""


class TunedProof(Proof):
    """Runs kernels under ``triton.autotune``."""

    def run(self, name: str, host: str, *_: str, compilers: bool = True, **variables: str) -> Answer:
        """Run the kernels on a host."""
        place = self.scratch / host
        file, traps = self.scratch / f"{name}.json", place / "traps"
        if not compilers:
            variables["PATH"] = str(trap(traps))
        Host(place).run(str(HERE / "tuned_kernels.py"), str(file), **variables)
        return self.keep(name, json.loads(file.read_text()), traps, line)

    def all(self) -> None:
        """Run every case."""
        with registry(self.scratch / "registry") as served:
            service = self.publish_and_restore(served, NAME, TUNED_PUBLISH=NAME)
            self.run("other code", "other", **service, TUNED_TIMES="3.0")

    def wrong(self) -> list[str]:
        """Return what is not as it should be."""
        problems = []
        for start, answer in self.answers.items():
            for form, result in answer["forms"].items():
                if not result["right"]:
                    problems.append(f"{start}: {form}: other numbers than PyTorch's")
                if start.startswith("restored") and form not in NEVER_KEPT and result["tuned"]:
                    problems.append(f"{start}: {form}: tuned {result['tuned']} times")
                if not start.startswith("restored") and not result["tuned"]:
                    problems.append(f"{start}: {form}: was not tuned")
            if start.startswith("restored"):
                observed = answer["observed"]
                called = [line for line in answer["called"] if not line.endswith(" --version")]
                if observed["compilations"] or observed["compiler_processes"] or called:
                    problems.append(f"{start}: compiled, {called}, {answer['reasons']}")
                if answer["state"] != "hit" and not answer["reasons"]:
                    problems.append(f"{start}: {answer['state']} without a reason")
        return problems


def line(name: str, answer: Answer) -> str:
    """Return the row of a table."""
    forms = ", ".join(f"{form} {result['tuned']}" for form, result in answer["forms"].items())
    runs = answer["observed"]["tuning_runs"]
    return f"{name}: {answer['state']}, {runs} tuning runs; {forms}; {answer['reasons']}"


def main() -> int:
    """Run all cases. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "build")))
    options = parser.parse_args()
    use_this_tree()
    return prove(TunedProof, options.out / "tuned.json", ("torch", "triton"))


if __name__ == "__main__":
    sys.exit(main())
