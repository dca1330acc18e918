"""Show the whole way on this machine: a registry, ``cachesvc warm``, and processes that do not compile.

For each model of ``deploy/demo/warm.toml`` one fresh process each: *cold* (PyTorch alone, empty folders),
*PyTorch warm* (PyTorch alone again, over the folders that the cold process left), and *cachesvc* (empty
folders, another HOME, TMPDIR and working directory, no C++ compiler on the PATH). Exit status 1 if a
restored process compiled, or if its output is not PyTorch's own.
Usage: ``python -m benchmarks.demo [MODEL ...]``.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.hosts import ROOT, Failed, Host, Registry, clean_environment, registry, running_process
from benchmarks.hosts import cachesvc as command_of
from benchmarks.hosts import serve_command as registry_command
from cachesvc.cli.signals import interruptible
from cachesvc.warm.spec.spec import Spec, TargetSpec, load_spec
from cachesvc_client.wire.errors import CacheSvcError

SPEC = ROOT / "deploy" / "demo" / "warm.toml"
COLUMNS = (
    "model",
    "cold",
    "PyTorch warm",
    "cachesvc",
    "of cold",
    "of warm",
    "compilations",
    "compilers run",
    "eager diff",
    "same output",
)
_BEGAN = time.monotonic()


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__.splitlines()[0])
    parser.add_argument("--spec", type=Path, default=SPEC, help="targets are named as benchmarks/models.py's")
    parser.add_argument("models", nargs="*", help="ids of targets, such as bert; all of them by default")
    options = parser.parse_args()
    try:
        with interruptible(), tempfile.TemporaryDirectory(prefix="cachesvc-demo-") as folder:
            return _demo(choose(load_spec(options.spec), options.models), Path(folder))
    except (Failed, CacheSvcError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; everything that was started has been ended", file=sys.stderr)
        return 130


def choose(spec: Spec, models: Sequence[str]) -> Spec:
    """Return the spec with these targets alone. Raises ``Failed`` for one that it does not have."""
    known = [target.id for target in spec.targets]
    for model in models:
        if model not in known:
            raise Failed(f"no model {model!r} in {spec.path.name}: choose from {', '.join(known)}")
    chosen = tuple(target for target in spec.targets if not models or target.id in models)
    return replace(spec, targets=chosen)


def _demo(spec: Spec, place: Path) -> int:
    _say("1  A registry, embedded: SQLite and a folder, nothing else to start")
    _command(registry_command(place / "registry"))
    with registry(place / "registry") as running:
        _note(f"listening on {running.url}")
        _say("2  Compile once, prove it, publish it: what CI does")
        warmed = _warm(spec, running)
        if warmed:
            raise Failed(f"cachesvc warm ended with status {warmed}")
        _say("3  Each model in fresh processes: what services do")
        rows = [_serve(target, str(spec.name), running, place / target.id) for target in spec.targets]
    return _conclude(rows)


def _warm(spec: Spec, running: Registry) -> int:
    path = spec.path.relative_to(ROOT) if spec.path.is_relative_to(ROOT) else spec.path
    for name, value in running.builder.items():
        _command([f"export {name}={value}"])
    chosen = [word for target in spec.targets for word in ("--target", target.id)]
    _command(["cachesvc", "warm", str(path), *chosen])
    command = command_of(["cachesvc", "warm", str(spec.path), *chosen])
    with running_process(command, env=clean_environment() | running.builder, cwd=ROOT) as process:
        return process.wait()


def _serve(target: TargetSpec, name: str, running: Registry, place: Path) -> dict[str, Any]:
    """Start one model three times, one after the other, with the variables that its target has."""
    model = target.id
    place.mkdir()
    service = ["python", "benchmarks/service.py", model]
    output = str(place / "cold.pt")
    alone, variables = Host(place / "pytorch"), dict[str, Any](target.env)
    _command(service)
    cold = alone.serve(model, "--keep", output, **variables)
    summarise("cold, PyTorch alone", cold)
    _command(service)
    warm = alone.serve(model, "--expect", output, **variables)
    summarise("PyTorch's own warm start, over the same folders", warm)
    _command([f"CACHESVC_NAME={name}", *service])
    ours = Host(place / "elsewhere").serve(
        model, "--expect", output, compilers=False, CACHESVC_NAME=name, **target.env, **running.service
    )
    summarise("cachesvc, empty folders, no compiler", ours)
    return {"model": model, "cold": cold, "warm": warm, "ours": ours}


def summarise(what: str, answer: dict[str, Any]) -> None:
    observed = answer["observed"]
    _note(
        f"{what}: first output {_seconds(answer)} after torch.compile(), "
        f"{observed['compilations']} compilations, {compilers_run(answer)} compilers run"
    )


def compilers_run(answer: dict[str, Any]) -> int:
    """Return the number of compiler processes that the process, or a child of it, started."""
    return int(answer["observed"]["compiler_processes"]) + len(answer["called"])


def problems(row: dict[str, Any]) -> list[str]:
    """Return in words what a restored process must not do and did; empty if there is nothing."""
    ours, differences = row["ours"], []
    observed, state = ours["observed"], ours["cachesvc"]["state"]
    for count in ("compilations", "tuning_runs"):
        if observed[count]:
            differences.append(f"{observed[count]} {count.replace('_', ' ')}")
    if compilers_run(ours):
        differences.append(
            f"{compilers_run(ours)} compilers run: {', '.join(ours['called']) or observed['processes']}"
        )
    if state != "hit":
        differences.append(f"{state}: {'; '.join(ours['cachesvc']['reasons'])}")
    if not ours["same"]:
        differences.append("its output is not that of PyTorch's own compilation")
    return [f"{row['model']}: {text}" for text in differences]


def _conclude(rows: Sequence[dict[str, Any]]) -> int:
    _say("4  Seconds from torch.compile() to the first output")
    table = [COLUMNS, *(_cells(row) for row in rows)]
    for line in aligned(table):
        print("  " + line)
    _note("compilations, compilers run: cold / PyTorch warm / cachesvc. same output: bit for bit as cold's")
    failures = [problem for row in rows for problem in problems(row)]
    for problem in failures:
        print(f"  NOT WARM: {problem}")
    minutes, seconds = divmod(round(time.monotonic() - _BEGAN), 60)
    verdict = "some restored process did work again" if failures else "no restored process compiled anything"
    _say(f"{verdict} ({minutes} min {seconds} s in all)")
    return 1 if failures else 0


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    starts = [row[name] for name in ("cold", "warm", "ours")]
    cold, warm, ours = (answer["seconds"]["first"] for answer in starts)
    return (
        row["model"],
        *(_seconds(answer) for answer in starts),
        f"{ours / cold:.2f} x",
        f"{ours / warm:.2f} x",
        " / ".join(str(answer["observed"]["compilations"]) for answer in starts),
        " / ".join(str(compilers_run(answer)) for answer in starts),
        f"{row['ours']['difference']:.1e}",
        "yes" if row["ours"]["same"] else "NO",
    )


def aligned(table: Sequence[Sequence[str]]) -> Iterable[str]:
    """Return the rows as text, with the first column to the left and the others to the right."""
    widths = [max(len(row[index]) for row in table) for index in range(len(table[0]))]
    for row in table:
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join([row[0].ljust(len(first)), *others])


def _seconds(answer: dict[str, Any]) -> str:
    return f"{answer['seconds']['first']:.2f} s"


def _say(text: str) -> None:
    print("\n" + _styled(text, "1"), flush=True)


def _note(text: str) -> None:
    print(f"  {text}", flush=True)


def _command(words: Sequence[str]) -> None:
    text = words[0] if len(words) == 1 else " ".join(map(shlex.quote, words))
    print("  " + _styled(f"$ {text}", "36"), flush=True)


def _styled(text: str, code: str) -> str:
    plain = not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if plain else f"\x1b[{code}m{text}\x1b[0m"


if __name__ == "__main__":
    sys.exit(main())
