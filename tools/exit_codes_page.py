"""``python -m tools.exit_codes_page``: writes docs/reference/exit-codes.md from the error types.

``make pages`` runs it, and a test fails if the page is not what the types say.
"""

from __future__ import annotations

from cachesvc_client.wire.errors import ALL, CacheSvcError
from tools.markdown import DOCS, generated, single_quoted, table

PAGE = DOCS / "reference" / "exit-codes.md"

HEAD = f"""\
# Exit codes and errors

{generated("client/cachesvc_client/wire/errors.py")}

Every command ends with a status that a script can test, and with one line on stderr:
`error: what and where (how to fix it)`. The type of the error decides four things: the exit status of a
command, the HTTP status of the registry's answer, the code in that answer, and whether a client tries again.

## Exit status
"""

MEANINGS = {
    0: "The command did what it was asked to do. A destructive command without `--apply` printed its plan.",
    1: "`doctor` found a failure, `fsck` found damage that is not repaired, or an internal error.",
    2: "An option, a setting, a spec or a value is malformed, or the named thing may not be changed "
    "(a pinned revision, a head).",
    3: "The token is missing, unknown, expired or not allowed to do this.",
    4: "There is no such thing, or nothing fits this environment.",
    5: "Somebody else published or changed it first.",
    6: "The registry, its database, its store or a disk cannot be used, or a quota is reached.",
    7: "A signature, a digest or a signed statement did not pass its check.",
    8: "The platform or the version of torch is not usable, or the conformance probe of `warm` failed.",
    9: "`warm`, `warm-report`: a target is cold, does not settle, cannot be compiled, or computes other "
    "numbers. `coverage`: a target is not warm in some environment. `admin gc --unless-cold`: starts would "
    "go cold.",
    126: "`run`: the command cannot be executed.",
    127: "`run`: there is no such command.",
    130: "The command was interrupted (Ctrl-C, or SIGTERM for `warm`).",
    141: "The reader of the output went away (`| head`).",
}
"""What each exit status means over all commands. A test compares the keys with the error types."""

ERRORS = """
## Errors of the API

An error answer is `{"error": {"code": …, "message": …, "hint": …}}`. "retried" says whether the client sends
the request again by itself.
"""


def render() -> str:
    """The whole page."""
    statuses = table(("status", "meaning"), ((str(status), text) for status, text in MEANINGS.items()))
    errors = table(("code", "HTTP", "exit", "retried", "meaning"), map(_row, ALL.values()))
    return "\n".join([HEAD, *statuses, ERRORS, *errors]) + "\n"


def _row(error: type[CacheSvcError]) -> tuple[str, ...]:
    meaning = single_quoted((error.__doc__ or "").split("\n\n")[0])
    if error is CacheSvcError:
        meaning = "An internal error."
    retried = "yes" if error.retry else "no"
    return f"`{error.code}`", str(error.status), str(error.exit_status), retried, meaning


if __name__ == "__main__":
    PAGE.write_text(render())
