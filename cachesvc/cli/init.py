"""``cachesvc init``: run a program once under observation, and write a warm spec of what it compiled."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from cachesvc_client.wire.errors import InvalidRequest, NotFound, StorageFull, printable
from cachesvc_client.wire.names import Name
from cachesvc_client.wire.text import count_text

from . import app
from .signals import interruptible

EPILOG = (
    "Exit status: 0 a spec was written; 2 bad option; 4 the program compiled nothing, or nothing that a spec "
    "can express; 6 disk; with --warm or after its question that of cachesvc warm."
)


@app.command(
    epilog=EPILOG, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
def init(
    context: typer.Context,
    command: Annotated[
        list[str], typer.Argument(metavar="SCRIPT.py|-- COMMAND...", help="The program, with its arguments.")
    ],
    out: Annotated[Path, typer.Option(help="The spec to write.")] = Path("warm.toml"),
    name: Annotated[
        str | None, typer.Option(help="The spec's namespace/name; by default demo and the spec's folder.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=1, help="End the program after so many seconds, for a service.")
    ] = None,
    warm: Annotated[
        bool | None,
        typer.Option(
            "--warm/--no-warm", help="Run cachesvc warm with the spec; by default ask on a terminal."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a spec that is there.")] = False,
) -> None:
    """Run a program once, see which models it compiles and how it calls them, and write a warm spec."""
    chosen = _name(name, out)
    _refuse_misplaced(command, {flag for one in context.command.params for flag in one.opts})
    if out.exists() and not force:
        raise InvalidRequest(f"{out} is there already", "give another --out, or --force to overwrite it")
    if not out.absolute().parent.is_dir():
        raise InvalidRequest(f"--out {out}: no such folder", "make the folder first")
    if command[0].endswith(".py") and not Path(command[0]).is_file():
        raise InvalidRequest(f"{command[0]}: no such file", "give the program that calls your model")
    if Path(command[0]).is_dir():
        raise InvalidRequest(f"{command[0]}: is a folder", "give the program that calls your model")
    words = [sys.executable, *command] if command[0].endswith(".py") else list(command)
    try:
        with interruptible():
            _init(words, out, chosen, seconds)
            if _asked(out) if warm is None else warm:
                raise typer.Exit(subprocess.call([sys.executable, "-m", "cachesvc", "warm", str(out)]))
    except KeyboardInterrupt:
        typer.echo("\ninterrupted; no spec was written", err=True)
        raise typer.Exit(130) from None


def _refuse_misplaced(command: list[str], options: set[str]) -> None:
    """Refuse options of this command after a script: the script would get them, and no line say so."""
    script = command[0]
    flag = next((word for word in command[1:] if word.partition("=")[0] in options), None)
    if flag is not None and script.endswith(".py"):
        raise InvalidRequest(
            f"{flag} stands after {script}, which would get it",
            f"put it before {script}; an option of the program: cachesvc init -- python {script} {flag} ...",
        )


def _asked(out: Path) -> bool:
    """Ask on a terminal whether to warm now; elsewhere say the command."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        return typer.confirm(f"run cachesvc warm {out} now?", default=True)
    typer.echo(f"next: cachesvc warm {out}")
    return False


def _init(words: list[str], out: Path, name: str, seconds: float | None) -> None:
    """Write the spec. Raise ``NotFound`` if the program has nothing for it."""
    from cachesvc.warm.init import spec_text
    from cachesvc.warm.init.project import SpecMaker
    from cachesvc.warm.worker.observing.program import run_observed

    try:
        run = run_observed(words, seconds)
    except OSError as error:
        raise InvalidRequest(f"{words[0]}: {error.strerror}", "give the command that starts it") from None
    if not (run.seen or run.uncalled):
        raise NotFound(
            "the program called nothing that torch.compile made"
            + (f" (it ended with status {run.status})" if run.status else ""),
            "let it make one call of each model; cachesvc has to be installed in the Python that it runs",
        )
    maker = SpecMaker(out, name, words, lambda line: typer.echo(printable(line), err=True))
    spec = maker.make(run)
    try:
        out.write_text(spec_text.render(spec, out.name))
    except OSError as error:
        raise StorageFull(f"--out {out}: {error.strerror}") from None
    for note in spec.notes:
        typer.echo(printable(f"not in the spec: {note}"))
    sets = sum(len(target.inputs) for target in spec.targets)
    counts = f"{count_text(len(spec.targets), 'target')}, {count_text(sets, 'input set')}"
    typer.echo(f"wrote {out}: {spec.name}, {counts}")
    if not spec.targets:
        raise NotFound(
            "the spec has no target", f"write the factories that {out} names, then: cachesvc warm {out}"
        )


def _name(name: str | None, out: Path) -> str:
    if name is None:
        folder = re.sub(r"[^a-z0-9._-]+", "-", out.absolute().parent.name.lower()).strip("-._") or "model"
        name = f"demo/{folder}"
    try:
        return str(Name.parse(name)) if ":" in name else str(Name.parse(name)).rpartition(":")[0]
    except ValueError as error:
        raise InvalidRequest(f"--name: {error}", "namespace/name, in lower case") from None
