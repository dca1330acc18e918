"""Run a composite action of GitHub as its runner does: its real steps with real bash, without the runner.

What is done here as the runner does it (github.com/actions/runner: CompositeActionHandler, ScriptHandler,
FileCommandManager, ActionCommandManager): inputs with their defaults, `if` and `env` of steps with their
expressions, `bash --noprofile --norc -eo pipefail FILE`, files for the outputs and the summary of each step
and for the variables and the PATH of the next ones, and the workflow commands in the log. An expression that
is not known here is an error.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

_EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
_COMMAND = re.compile(r"::([a-z-]+)(?: +([^:]*(?:=[^:]*)?))?::(.*)")
_FILES = ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "GITHUB_ENV", "GITHUB_PATH")
_TEXT = re.compile(r"'((?:[^']|'')*)'")


@dataclass
class Ran:
    """What came of a run. ``ok``: whether no step failed. ``annotations``: level, properties, message."""

    ok: bool = True
    outputs: dict[str, str] = field(default_factory=dict)
    summary: str = ""
    log: str = ""
    annotations: list[tuple[str, dict[str, str], str]] = field(default_factory=list)
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)


def evaluate(expression: str, contexts: Mapping[str, Any], ok: bool) -> Any:
    """Evaluate the part of GitHub's expressions that the action uses."""
    text = expression.strip()
    if "&&" in text:
        left, _, right = text.partition("&&")
        first = evaluate(left, contexts, ok)
        return evaluate(right, contexts, ok) if first else first
    for operator in ("==", "!="):
        if operator in text:
            left, _, right = text.partition(operator)
            same = evaluate(left, contexts, ok).lower() == evaluate(right, contexts, ok).lower()
            return same == (operator == "==")
    if text == "always()":
        return True
    if match := _TEXT.fullmatch(text):
        return match[1].replace("''", "'")
    value: Any = contexts
    for name in text.split("."):
        assert re.fullmatch(r"[a-z_-]+", name), f"not known here: {expression}"
        value = value.get(name, "") if isinstance(value, Mapping) else ""
    assert text.split(".")[0] in contexts, f"not known here: {expression}"
    return value


def fill(text: str, contexts: Mapping[str, Any], ok: bool = True) -> str:
    """Put the values of a text's expressions in."""
    return _EXPRESSION.sub(lambda match: str(evaluate(match[1], contexts, ok)), str(text))


def run_action(
    folder: Path,
    inputs: Mapping[str, str],
    environ: Mapping[str, str],
    place: Path,
    *,
    token: str = "",
    prefix: Sequence[str] = (),
) -> Ran:
    """Run the action in ``folder`` with a workspace and temporary files in ``place``. ``prefix``: words
    before each command, such as those that give up rights."""
    action = yaml.safe_load((folder / "action.yml").read_text())
    unexpected = set(inputs) - set(action["inputs"])
    assert not unexpected, f"Unexpected input(s): {unexpected}"
    contexts: dict[str, Any] = {"github": {"token": token}, "steps": {}}
    defaults = {name: fill(row.get("default", ""), contexts) for name, row in action["inputs"].items()}
    contexts["inputs"] = {**defaults, **inputs}
    ran = Ran(steps=contexts["steps"])
    (place / "temp").mkdir(exist_ok=True)
    workspace = place / "workspace"
    workspace.mkdir(exist_ok=True)
    variables = {
        **environ,
        "CI": "true",
        "GITHUB_ACTIONS": "true",
        "GITHUB_ACTION_PATH": str(folder),
        "GITHUB_WORKSPACE": str(workspace),
        "RUNNER_TEMP": str(place / "temp"),
    }
    for number, step in enumerate(action["runs"]["steps"]):
        _run_step(step, number, contexts, variables, place, ran, prefix)
    ran.outputs = {name: fill(row["value"], contexts) for name, row in action["outputs"].items()}
    return ran


def _run_step(
    step: Mapping[str, Any],
    number: int,
    contexts: dict[str, Any],
    variables: dict[str, str],
    place: Path,
    ran: Ran,
    prefix: Sequence[str],
) -> None:
    condition = str(step.get("if", "success()")).strip()
    if match := _EXPRESSION.fullmatch(condition):
        condition = match[1]
    needs_success = "always()" not in condition
    wanted = condition.strip() == "success()" or evaluate(condition, contexts, ran.ok)
    if not wanted or (needs_success and not ran.ok):
        contexts["steps"][step["id"]] = {"outputs": {}, "outcome": "skipped"}
        return
    assert step["shell"] == "bash"
    script = place / "temp" / f"{number}.sh"
    script.write_text(fill(step["run"], contexts, ran.ok))
    files = {name: place / "temp" / f"{name}-{number}" for name in _FILES}
    for file in files.values():
        file.write_text("")
    result = subprocess.run(
        [*prefix, "bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
        env={
            **variables,
            **{name: fill(value, contexts, ran.ok) for name, value in step.get("env", {}).items()},
            **{name: str(file) for name, file in files.items()},
        },
        cwd=place / "workspace" / fill(step.get("working-directory", "."), contexts),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    ran.log += result.stdout
    ran.summary += files["GITHUB_STEP_SUMMARY"].read_text()
    ran.annotations += commands(result.stdout)
    outputs = dict(line.split("=", 1) for line in files["GITHUB_OUTPUT"].read_text().splitlines())
    variables |= dict(line.split("=", 1) for line in files["GITHUB_ENV"].read_text().splitlines())
    for folder in files["GITHUB_PATH"].read_text().splitlines():
        variables["PATH"] = f"{folder}:{variables['PATH']}"
    ran.ok = ran.ok and result.returncode == 0
    contexts["steps"][step["id"]] = {
        "outputs": outputs,
        "outcome": "success" if result.returncode == 0 else "failure",
        "status": result.returncode,
    }


def commands(log: str) -> list[tuple[str, dict[str, str], str]]:
    """Return the commands of a log that the runner obeys: none between `stop-commands` and its token."""
    obeyed, token = [], ""
    for line in log.splitlines():
        match = _COMMAND.fullmatch(line.strip())
        if token:
            token = "" if line.strip() == f"::{token}::" else token
        elif match and match[1] == "stop-commands":
            token = match[3]
        elif match:
            pairs = (pair.partition("=") for pair in (match[2] or "").split(",") if pair)
            properties = {name: _unescape(value) for name, _, value in pairs}
            obeyed.append((match[1], properties, _unescape(match[3])))
        else:
            assert "##[" not in line, line
    assert not token, "the log ends without obedience"
    return obeyed


def _unescape(text: str) -> str:
    for escaped, char in (("%3A", ":"), ("%2C", ","), ("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
        text = text.replace(escaped, char)
    return text


def as_runner(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a machine whose `python` has this checkout."""
    names = ("PATH", "LANG", "HOME", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH", "TZ", "OMP_NUM_THREADS")
    return {name: os.environ[name] for name in names if name in os.environ} | dict(environ)
