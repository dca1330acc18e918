"""Share what the proofs of kernel compilers have in common: the processes that restore what a builder
published, how they are judged, and the file of results."""

from __future__ import annotations

import abc
import json
import shutil
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.conditions import commit, gpus, hardware, now
from benchmarks.hosts import Failed, Registry
from cachesvc_client.hooks.counters import is_compiler

Answer = dict[str, Any]


class Proof(abc.ABC):
    """Runs the processes of a proof in a scratch folder, and keeps their answers by name."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.answers: dict[str, Answer] = {}

    @abc.abstractmethod
    def run(self, name: str, host: str, *arguments: str, compilers: bool = True, **variables: str) -> Answer:
        """Run the kernels on a host; without ``compilers`` the PATH has none. Return the answer."""

    @abc.abstractmethod
    def all(self) -> None:
        """Run every case."""

    @abc.abstractmethod
    def wrong(self) -> list[str]:
        """Return what is not as it should be."""

    def keep(self, name: str, answer: Answer, traps: Path, line: Callable[[str, Answer], str]) -> Answer:
        """Keep an answer, with the compilers that were called, and print its line of the table."""
        called = traps / "called"
        answer["called"] = called.read_text().splitlines() if called.exists() else []
        self.answers[name] = answer
        print(line(name, answer), flush=True)
        return answer

    def publish_and_restore(
        self, served: Registry, name: str, *arguments: str, **variables: Any
    ) -> dict[str, Any]:
        """Have a builder publish ``name`` from empty folders, remove its host, and restore on fresh ones.

        ``arguments``, ``variables``: of the builder, which make it publish. Return the variables of a
        service."""
        service: dict[str, Any] = {**served.service, "CACHESVC_NAME": name, "CACHESVC_DEADLINE": "60"}
        publish: dict[str, Any] = publishing(served)
        self.run("builder", "builder", *arguments, **service, **publish, **variables)
        shutil.rmtree(self.scratch / "builder")
        self._restore(service)
        return service

    def _restore(self, service: dict[str, str]) -> None:
        """Restore on three fresh hosts without compilers; the last one lists the programs that it starts."""
        for number in (1, 2):
            self.run(f"restored {number}", f"service{number}", compilers=False, **service)
        started = self.scratch / "started"
        listing = {**service, "CACHESVC_OBSERVE": str(started)}
        audited = self.run("restored, listed", "service3", compilers=False, **listing)
        programs = started.read_text().splitlines() if started.exists() else []
        audited["started"] = programs
        audited["compilers"] = list(filter(is_compiler, programs))

    def wrong_restores(self, alike: Iterable[str]) -> list[str]:
        """Return where a restored process did work, or differs from the builder in one of ``alike``."""
        builder, problems = self.answers["builder"], []
        for name, answer in self.answers.items():
            if not name.startswith("restored"):
                continue
            observed = answer["observed"]
            counts = observed["compilations"], observed["tuning_runs"], observed["compiler_processes"]
            if any(counts) or answer["called"] or answer.get("compilers") or answer["state"] != "hit":
                problems.append(
                    f"{name}: {answer['state']}, {counts}, {answer['called']}, {answer['reasons']}"
                )
            problems += [
                f"{name}: other {what} than the builder's" for what in alike if answer[what] != builder[what]
            ]
        return problems


def publishing(served: Registry) -> dict[str, str]:
    """Return the variables by which a process may publish into a registry."""
    return {"CACHESVC_MODE": "readwrite", "CACHESVC_SIGNING_KEY": served.signing_key}


def prove(make: Callable[[Path], Proof], file: Path, packages: Iterable[str], **facts: Any) -> int:
    """Run a proof, write its file, and print what is wrong. Return the exit status."""
    with TemporaryDirectory(prefix="cachesvc-proof-") as folder:
        proof = make(Path(folder))
        try:
            proof.all()
            problems = proof.wrong()
        except Failed as error:
            problems = [str(error)]
    whole = {
        "when": now(), "source": commit(), "gpus": gpus(), "hardware": hardware(),
        "packages": {name: _version(name) for name in packages}, **facts,
        "problems": problems, "starts": proof.answers,
    }  # fmt: skip
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(whole, indent=1))
    for problem in problems:
        print(f"wrong: {problem}")
    return 1 if problems else 0


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
