"""``python -m tools.keys``: writes docs/keys.md, the factor table in words. `make keys` runs it, and a test
fails if the file is not what the table says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cachesvc_client.graphs import ambient, door, operators
from cachesvc_client.kinds.frames.guards.words import REFUSED, WORDS
from cachesvc_client.wire.factors import FACTORS, SCHEMA, Factor
from tools.markdown import DOCS, table

DOCUMENT = DOCS / "keys.md"

HEAD = f"""\
# What decides whether an entry fits

<!-- Made from the factor table (cachesvc_client/wire/factors.py) by `make keys`. Do not edit. -->

Client and registry compare factor by factor, by this one table; `cachesvc explain NAME` prints the
comparison. The order is that of importance: what changes other factors with it comes before them, so that the
first difference is the cause.

| rule | the entry fits if |
|---|---|
| equal | both sides say the same |
| covers | the consumer has all that the builder had |
| within | the builder had all that the consumer asks for |
| at least | the consumer's version is not lower |

A factor counts if the entry holds what it is about: GPU code (*gpu*), code for the host's CPU (*host*), or in
any case (*any*). If the consumer cannot tell, the entry is refused, or accepted, as the last column says. A
factor that the entry does not carry (an older builder) says nothing. An entry whose deciding factors are of a
newer schema than {SCHEMA} is refused; a factor that decides nothing and is not known here is shown and passed
over.
"""

PARTS = (
    (
        "Refused if it differs",
        "cachesvc decides: nothing of the entry is installed, and the reason says which factor it was. These "
        "factors make the partition, so that builders which differ in one publish entries beside each other.",
        lambda factor: factor.decider == "cachesvc",
    ),
    (
        "PyTorch's keys decide",
        "The entry is installed. If the factor differs, PyTorch looks for another key and compiles; the "
        "report and the log name the factor. They are known once something is compiled (save `settings`).",
        lambda factor: factor.decider == "compiler",
    ),
    (
        "For people",
        "Recorded and shown. An entry fits or not without them; `model` orders those that fit.",
        lambda factor: factor.decider == "nobody",
    ),
)


FRAMES = """
## What a recorded frame compares

A start without traces asks no key of PyTorch's. A frame that `warm` recorded is used only if all of this is
equal; else the function is traced, and `explain` names the difference.

- What a program put in the place of torch's own functions and tables, and the settings of the process.
- The code of every function that was traced, and what each name in it leads to.
- Classes: their attributes by value, in order. Variables of the environment, answers that Dynamo turns into
  constants, names and keys that were looked up and were not there, and what functions of the interpreter's
  own modules read of those.
- Which names lead to one object, and the order of the sets that the trace made constants.
- Every guard of Dynamo's, by what it compares, as in this table. A guard that is not in it makes a frame that
  is not recorded.
"""


def render() -> str:
    """The whole document."""
    parts = [HEAD]
    for title, about, chosen in PARTS:
        parts += [f"\n## {title}\n\n{about}\n", *_table(filter(chosen, FACTORS))]
    return "\n".join([*parts, _added(), FRAMES, *_guards()]) + "\n"


def _added() -> str:
    """What cachesvc adds to PyTorch's keys."""
    words = {**ambient.PARTS, operators.ATTRIBUTE: "code of an operator", **door.PARTS}
    words[door.UNKNOWN] = "for a graph that depends on what has no description: a value of this process alone"
    lines = "\n".join(f"- {text}" for text in dict.fromkeys(words.values()))
    return f"\n## What cachesvc adds to PyTorch's keys\n\nWhere a version's keys lack it:\n\n{lines}"


def _about(words: Any) -> str:
    return (getattr(words, "func", words).__doc__ or "").partition("\n")[0].rstrip(".")


def _guards() -> list[str]:
    rows = [(f"`{name}`", "compared", _about(words)) for name, words in WORDS.items()]
    rows += [(f"`{name}`", "refused", why) for name, why in REFUSED.items()]
    return table(("guard", "", "by"), sorted(rows))


def _table(factors: Iterable[Factor]) -> list[str]:
    head = ("factor", "of", "rule", "counts for", "why", "how to fix it", "unknown here")
    rows = [
        (
            f"`{factor.name}`",
            factor.group,
            factor.rule.replace("_", " "),
            factor.scope,
            factor.why,
            factor.fix,
            "refused" if factor.absent_mine == "refuse" else "accepted",
        )
        for factor in factors
    ]
    return table(head, rows)


if __name__ == "__main__":
    DOCUMENT.write_text(render())
