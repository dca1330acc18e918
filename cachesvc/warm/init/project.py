"""Make a warm spec of what a program compiled when it ran under observation; for `cachesvc init`."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..launcher import Launcher
from ..spec import variables
from ..spec.inputs import MODEL_DTYPES
from ..spec.plan import plan
from ..spec.spec import MODES, OWN_VARIABLES, parse_spec
from ..spec.toml_table import MADE_BY
from ..worker.observing.calls import MAX_CALLS
from ..worker.observing.program import ProgramRun
from ..worker.observing.records import CallSeen, Candidate, CompiledSeen
from ..worker.phase import PhaseRequest
from . import spec_text

_ENVIRONMENT = re.compile(r"(OMP|MKL|KMP)_\w+|TORCHINDUCTOR_\w+|TORCH_\w+|TRITON_\w+")
"""Names of variables that decide what is compiled, and that the service may set and the builder not."""


@dataclass(slots=True)
class Target:
    """Holds what becomes a ``[[target]]``: its keys, and the input sets by name."""

    id: str
    keys: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(slots=True)
class ProjectSpec:
    """Holds the spec of a project. ``stubs``: commented entries of what no target expresses. ``notes``: a
    line for each thing that the spec could not express, and what to do."""

    name: str
    env: dict[str, str] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    stubs: list[tuple[Target, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class SpecMaker:
    """Makes the spec: chooses a factory for each model, and proves that it builds the model that was seen."""

    def __init__(self, path: Path, name: str, command: Sequence[str], on_step: Callable[[str], None]) -> None:
        """``path``: the spec that is to be written. ``on_step``: shows what is done now."""
        self._path, self._command, self._on_step = path.absolute(), list(command), on_step
        self._script = next((Path(word).absolute() for word in command if word.endswith(".py")), None)
        self._launcher = Launcher()
        self.spec = ProjectSpec(name)

    def make(self, run: ProgramRun) -> ProjectSpec:
        """Return the spec of what was seen."""
        self._environment()
        expressed = [self._add(seen, ident) for seen, ident in _named(run.seen)]
        if not expressed:
            # Lightning calls the functions of a compiled module, and not what torch.compile returned.
            self.spec.notes += [
                f"{one.what} (compiled at {one.where}) has no target: no call of it was seen"
                for one in run.uncalled
            ]
        if not all(expressed) or not expressed:
            self._add_script(run.status)
        return self.spec

    def _environment(self) -> None:
        passed = variables.choose_variables(os.environ)
        self.spec.env = {
            name: value
            for name, value in sorted(passed.items())
            if _ENVIRONMENT.fullmatch(name) and name not in OWN_VARIABLES and "LOG" not in name
        }
        if self._script is not None and self._script.parent != self._path.parent:
            self.spec.paths = [os.path.relpath(self._script.parent, self._path.parent)]

    def _add(self, seen: CompiledSeen, ident: str) -> bool:
        """Add the targets of one compiled callable. Return whether all of its calls are expressed."""
        targets = _targets(seen, ident)
        problem = next(iter([*seen.problems, *(line for call in seen.calls for line in call.problems)]), "")
        if len(seen.calls) == MAX_CALLS:
            self.spec.notes.append(
                f"{ident}: calls after {MAX_CALLS} different ones; dynamic = true may serve them"
            )
        factory, why = self._factory(seen, targets[0]) if not problem else (None, problem)
        for target in targets:
            if factory is not None:
                target.keys = {**factory, **target.keys}
                self.spec.targets.append(target)
            else:
                self.spec.stubs.append((target, why))
        if factory is None:
            self.spec.notes.append(f"{seen.what} (compiled at {seen.where}) has no target: {why}")
        return factory is not None

    def _factory(self, seen: CompiledSeen, target: Target) -> tuple[dict[str, Any] | None, str]:
        """Return the keys that build the model, or why nothing that a spec can call does."""
        if not seen.is_module:
            return None, (
                "it is a function; write a factory that returns the function without torch.compile around it"
            )
        why = f"{seen.what} was built by no function that has returned it; write a factory that returns it"
        for candidate in seen.candidates:
            call, problem = self._importable(candidate)
            if not problem:
                # A class of the program itself has another name when it is imported, so another model hash.
                digest = "" if seen.what.startswith("__main__.") else seen.module.digest
                problem = self._prove(call, candidate.args, target, digest)
            if not problem:
                return {"factory": call, **({"args": candidate.args} if candidate.args else {})}, ""
            why = problem
        return None, why

    def _importable(self, candidate: Candidate) -> tuple[str, str]:
        """Return ``module:function``; and why it cannot be called from a spec, if it cannot."""
        module = candidate.module
        main = f'"{MADE_BY}": "__main__:'
        text = json.dumps(candidate.args)
        if module == "__main__" or main in text:
            path = self._script if module != "__main__" and self._script else Path(candidate.file)
            if line := runs_when_imported(path):
                return "", (
                    f"{candidate.name} is in {path.name}, whose line {line} runs at its import; move it into "
                    'a module of its own, or put that line below if __name__ == "__main__"'
                )
            module = path.stem if module == "__main__" else module
            candidate.args = json.loads(text.replace(main, f'"{MADE_BY}": "{path.stem}:'))
        return f"{module}:{candidate.name}", candidate.problem and f"{candidate.problem}; write a factory"

    def _prove(self, call: str, args: dict[str, Any], target: Target, digest: str) -> str:
        """Build the model as `warm` does, in a fresh process, and call it.

        Return why this fails, or that it is another model than ``digest`` says; an empty ``digest`` says
        nothing.
        """
        self._on_step(f"{target.id}: does {call} build it?")
        trial = replace(target, keys={"factory": call, **({"args": args} if args else {}), **target.keys})
        spec = parse_spec(
            spec_text.render(replace(self.spec, targets=[trial], stubs=[], notes=[])), self._path
        )
        with tempfile.TemporaryDirectory(prefix="cachesvc-init-") as folder:
            result = self._launcher.run(PhaseRequest("eager", plan(spec)[0]), Path(folder), {})
        if result.error:
            return result.error
        built = str(result.model.digest) if result.model and result.model.digest else ""
        return "" if digest in ("", built) else f"{call} builds another model than the program compiled"

    def _add_script(self, status: int | None) -> None:
        """Add the whole program as a target, which expresses everything, if it ends by itself."""
        script = self._script
        if (
            script is None
            or status != 0
            or not self._command[0].endswith(("python", "python3", sys.executable))
        ):
            return
        words = self._command[[Path(word).absolute() for word in self._command].index(script) + 1 :]
        keys: dict[str, Any] = {"script": os.path.relpath(script, self._path.parent)}
        keys |= {"args": words} if words else {}
        used = {target.id for target in self.spec.targets}
        ident = next(name for name in (script.stem, f"{script.stem}-script") if name not in used)
        self.spec.targets.append(Target(ident, keys))
        self.spec.notes.append(f"the target {ident!r} runs the whole of {script.name} for what has no target")


def runs_when_imported(path: Path) -> int:
    """Return the first line of a program that does something when the file is imported; 0 if none does."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return 1
    plain = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for node in body:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        guard = isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
        constant = isinstance(node, (ast.Assign, ast.AnnAssign)) and not any(
            isinstance(part, (ast.Call, ast.Await)) for part in ast.walk(node)
        )
        decorated = getattr(node, "decorator_list", [])
        if not (isinstance(node, plain) or is_text or guard or constant) or (
            decorated and any(isinstance(part, ast.Call) for one in decorated for part in ast.walk(one))
        ):
            return node.lineno
    return 0


def _named(seen: Iterable[CompiledSeen]) -> list[tuple[CompiledSeen, str]]:
    """Return each with an id of its own, from the name of its class or function."""
    rows: list[tuple[CompiledSeen, str]] = []
    for one in seen:
        ident = re.sub(r"[^A-Za-z0-9_]+", "-", one.what.rpartition(".")[2]).strip("-").lower()[:48] or "model"
        used = [name for _, name in rows]
        number = next(n for n in range(1, len(used) + 2) if (ident if n == 1 else f"{ident}-{n}") not in used)
        rows.append((one, ident if number == 1 else f"{ident}-{number}"))
    return rows


def _targets(seen: CompiledSeen, ident: str) -> list[Target]:
    """Return a target for each way in which the model was called: grad mode, autocast, training, threads."""
    ways: dict[tuple[str, str, bool, int], list[CallSeen]] = {}
    for call in seen.calls:
        ways.setdefault((call.grad, call.autocast, call.training, call.threads), []).append(call)
    rows: list[Target] = []
    for (grad, autocast, training, threads), calls in ways.items():
        suffix = (
            ""
            if len(ways) == 1
            else "-training"
            if training
            else f"-{grad}" + f"-{autocast}" * bool(autocast)
        )
        names = [row.id for row in rows]
        name = ident + suffix if ident + suffix not in names else f"{ident}{suffix}-{len(names) + 1}"
        keys = _compile_keys(seen) | ({"kind": "training"} if training else {"grad": grad})
        keys |= {"autocast": autocast} if autocast else {}
        keys |= {"env": {"OMP_NUM_THREADS": str(threads)}} if threads != seen.threads else {}
        inputs = {
            f"call-{number}": {**({"*": call.args} if call.args else {}), **call.kwargs}
            for number, call in enumerate(calls, 1)
        }
        rows.append(Target(name, keys, inputs))
    return rows


def _compile_keys(seen: CompiledSeen) -> dict[str, Any]:
    keys, how = dict[str, Any](), seen.compile
    if seen.module.dtype in MODEL_DTYPES:
        keys["dtypes"] = [seen.module.dtype]
    if how.mode in MODES:
        keys["modes"] = [how.mode]
    if how.options:
        keys["options"] = how.options
    if how.dynamic is not None:
        keys["dynamic"] = how.dynamic
    if how.fullgraph:
        keys["fullgraph"] = True
    if seen.module.device:
        keys["device"] = "cuda" if seen.module.device == "cuda:0" else seen.module.device
    return keys
