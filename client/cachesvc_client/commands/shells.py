"""Owns what connects a shell's tab key to this program: the script of each shell, and where it is installed.

A script calls the program with the words of the line as its arguments, the last one as far as it is typed.
The variable ``_CACHESVC_CLIENT_COMPLETE`` names the shell. The answer has a line for each choice: the word, a
tab, its help.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..wire.errors import InvalidRequest, StorageFull
from .complete import complete

VARIABLE = "_CACHESVC_CLIENT_COMPLETE"
"""Says that a shell asks, and which one."""
PROGRAM = "cachesvc-client"

# Without a choice each shell completes files: for arguments that are files, and for the command after `--`.
_BASH = """\
_cachesvc_client() {
    local IFS=$'\\n'
    COMPREPLY=( $(_CACHESVC_CLIENT_COMPLETE=bash "$1" "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null) )
}
complete -o default -F _cachesvc_client cachesvc-client
"""
_ZSH = """\
#compdef cachesvc-client
_cachesvc_client() {
    local line
    local -a choices
    _CACHESVC_CLIENT_COMPLETE=zsh "${(Q)words[1]}" "${(@Q)words[2,CURRENT]}" 2>/dev/null |
        while IFS= read -r line; do choices+=("${${line%%$'\\t'*}//:/\\\\:}:${line#*$'\\t'}"); done
    if (( $#choices )); then _describe cachesvc-client choices; else _files; fi
}
if [[ ${funcstack[1]} = _cachesvc-client ]]; then
    _cachesvc_client "$@"
else
    compdef _cachesvc_client cachesvc-client
fi
"""
_FISH = """\
function __cachesvc_client_complete
    set --local words (commandline --tokenize --current-process --cut-at-cursor)
    set --local choices (env _CACHESVC_CLIENT_COMPLETE=fish $words (commandline --current-token) 2>/dev/null)
    if test (count $choices) -gt 0
        printf '%s\\n' $choices
    else
        __fish_complete_path (commandline --current-token)
    end
end
complete --command cachesvc-client --no-files --arguments '(__cachesvc_client_complete)'
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
_ZSH_START = "fpath+=~/.zfunc; autoload -Uz compinit; compinit"
"""The line of ``.zshrc`` that ``cachesvc --install-completion`` adds too."""


def answer(parser: argparse.ArgumentParser, shell: str, words: Sequence[str]) -> str:
    """Return the choices for the last of ``words``, in the form that the script of ``shell`` reads."""
    *before, incomplete = words or [""]
    pairs = complete(parser, before, incomplete)
    if shell == "bash":
        return "".join(f"{word}\n" for word, _ in pairs)
    return "".join(f"{word}\t{' '.join(help_text.split())}\n" for word, help_text in pairs)


def add_completion(parser: argparse.ArgumentParser) -> None:
    """Add ``--install-completion`` and ``--show-completion``, by the names that ``cachesvc`` has for them."""
    for option, act, text in (
        ("--install-completion", _install, "install completion for this shell, or for the one that is named"),
        ("--show-completion", _print_script, "print the script of a shell, to install it where you want"),
    ):
        parser.add_argument(
            option, action=_Action, const=act, nargs="?", default=None, choices=tuple(SCRIPTS), help=text
        )


def _print_script(shell: str) -> None:
    sys.stdout.write(SCRIPTS[shell])


def _install(shell: str) -> None:
    print(f"{shell} completion installed in {install(shell)}; it works in the next shell that you start")


class _Action(argparse.Action):
    """Calls ``const`` with the shell that is named, else with the present one, and ends the program."""

    def __call__(
        self, parser: argparse.ArgumentParser, _namespace: Any, values: Any, _option: str | None = None
    ) -> None:
        self.const(this_shell() if values is self.const else values)  # argparse passes `const` for no value
        parser.exit()


def install(shell: str) -> Path:
    """Write the script where a shell reads it, and have its start file load it. Return the script's path.

    A second call changes nothing. Raises ``StorageFull`` for what cannot be written.
    """
    home = Path.home()
    configuration = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    path, start, line = {
        "bash": (home / ".bash_completions" / f"{PROGRAM}.sh", home / ".bashrc", None),
        "zsh": (home / ".zfunc" / f"_{PROGRAM}", home / ".zshrc", _ZSH_START),
        "fish": (configuration / "fish" / "completions" / f"{PROGRAM}.fish", None, None),
    }[shell]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SCRIPTS[shell])
        if start is not None:
            _add_line(start, line or f"source '{path}'")
    except OSError as error:
        raise StorageFull(f"{error.filename}: cannot be written: {error.strerror}") from None
    return path


def _add_line(file: Path, line: str) -> None:
    text = file.read_text(errors="surrogateescape") if file.exists() else ""
    if line in text.splitlines():
        return
    with open(file, "a") as end:
        end.write(("" if text.endswith("\n") or not text else "\n") + line + "\n")


def this_shell() -> str:
    """Return the shell from which this program was started, else the user's. Raises ``InvalidRequest`` if it
    is none that completes here."""
    pid = os.getppid()
    while pid > 1:
        try:
            # The name stands in parentheses and may hold some itself, see proc(5).
            before, _, after = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        except OSError:
            break
        if (name := before.partition("(")[2].lstrip("-")) in SCRIPTS:
            return name
        pid = int(after.split()[1])
    name = Path(os.environ.get("SHELL", "")).name
    if name not in SCRIPTS:
        raise InvalidRequest(
            f"not a shell that completes: {name or 'none'}", f"name one: {', '.join(SCRIPTS)}"
        )
    return name
