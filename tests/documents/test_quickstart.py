"""Test that the quick start of the README works as it is typed: its blocks are run, and nothing else."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .markdown import DOCS, README, ROOT, blocks, section

SECURITY, LEAKED = DOCS / "security.md", "A key leaked"
"""The page with what an administrator types when a key leaked, and its section."""
SECONDS = 1400
"""The limit of the whole quick start. It takes a minute on a machine with nothing else to do, and eight times
as long on one that is busy."""


def shell_blocks(path: Path) -> list[str]:
    """Return every shell command of a page's quick start, except those that install."""
    text = section(path, "Quick start") if path == README else path.read_text("utf-8")
    return [block for block in blocks(text, "sh") if "pip install" not in block]


def leaked_key_block() -> str:
    """Return the shell commands about a key that leaked."""
    [block] = blocks(section(SECURITY, LEAKED), "sh")
    return block


def anonymous(text: str) -> str:
    """Return text without the digests of one run."""
    return re.sub(r"sha256:[0-9a-f]+", "sha256:", text)


def user_environment(folder: Path) -> dict[str, str]:
    """Return the variables of a user who has nothing but this Python, with a home and a temporary folder of
    its own.

    The text names no port. The registry takes its default port, which another process of this machine may
    have, so the variable asks for any free one; the ``login`` line then has that port."""
    names = ("LANG", "LD_LIBRARY_PATH")
    home, temporary = folder / "home", folder / "tmp"
    home.mkdir()
    temporary.mkdir()
    return {
        **{name: os.environ[name] for name in names if name in os.environ},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "CACHESVC_SERVER_PORT": "0",
    }


def run_script(script: str, folder: Path, environ: dict[str, str]) -> str:
    """Run a script with ``bash`` and return its output. Every process that the script started ends with
    it."""
    process = subprocess.Popen(
        ["bash", "-e", "-c", script],
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=SECONDS)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, printed
    return printed


STOP = "kill %1\n"
"""The last command of the quick start, which stops the registry."""


@pytest.mark.compiles
@pytest.mark.timeout(SECONDS + 60)
def test_the_quick_start_hits_as_it_is_typed_and_a_leaked_key_is_refused(tmp_path: Path) -> None:
    """The commands about a leaked key are for the registry and the node of the quick start."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    start = "\n".join(shell_blocks(README))
    assert start.endswith(STOP)
    script = start.removesuffix(STOP) + leaked_key_block() + STOP

    printed = run_script(script, tmp_path, user_environment(tmp_path))

    assert "1 of 1 targets are warm" in printed
    answers = re.findall(r"first answer after [0-9.]+ s: class (\d)", printed)
    assert len(answers) == 2 and answers[0] == answers[1], printed
    assert "cachesvc: demo/classifier:latest: hit: nothing compiled, " in printed, printed
    assert "compiled here after a restore" not in printed, printed
    assert re.search(r"classifier/default .* 1 hit;", printed), printed
    expected = blocks(section(SECURITY, LEAKED), "")[0]
    revoked, refused = re.findall(r"^(refused .*|cachesvc: .*(?:\n.*)*)", expected, flags=re.MULTILINE)
    assert _without_keys(revoked) in _without_keys(printed), printed
    # Within 5 s of its last answer the registry still offers the revision, and the node refuses it by itself.
    by_node = r"compiles: \S+ signed by key \S+ \([0-9a-f]+\), which \S+ revoked on \S+ leaked in a CI log"
    by_registry = anonymous(" ".join(refused.split())) in anonymous(printed)
    assert by_registry or re.search(by_node, printed), printed


def _without_keys(text: str) -> str:
    return re.sub(r"ed25519:\S+ \([0-9a-f]{16}\)", "a key", text)


def test_the_readme_revokes_as_the_page_does() -> None:
    typed = [line for line in section(README, "Trust").splitlines() if line.startswith("$ ")]
    assert typed[0].removeprefix("$ ") in leaked_key_block()
    assert typed[1].removeprefix("$ ") in leaked_key_block()


def test_the_page_has_the_commands_of_the_readme() -> None:
    assert shell_blocks(DOCS / "quickstart.md") == shell_blocks(README)
