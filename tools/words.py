"""``python -m tools.words``: prints where documents and docstrings use a word that the house avoids.

Each word has a plainer one beside it. Today's uses are counted by file in ``tests/house/words.txt``, a list
that may only become shorter: a file with more is refused, and so is a count that is too high by now.
``--write`` writes the list; ``--show FILE...`` prints each use in these files.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTED = ROOT / "tests" / "house" / "words.txt"
PACKAGES = ("cachesvc", "client/cachesvc_client", "tools")
AVOIDED: Mapping[str, tuple[str, str]] = {
    "give": (r"giv(?:e|es|en|ing)|gave", "return, pass, answer"),
    "bring": (r"bring(?:s|ing)?|brought", "add, fetch, install"),
    "settle": (r"settl(?:e|es|ed|ing)", "decide, assign"),
    "leave": (r"leav(?:e|es|ing)|left (?:out|to|alone|as)", "omit, skip, keep"),
    "look": (r"look(?:s|ed|ing)?(?!-ups?\b)", "read, search, check"),
    "take": (r"tak(?:e|es|en|ing)|took", "accept, use, need, last"),
    "go by": (r"go(?:es|ing)? by|went by", "follow, decide by"),
    "hold": (r"hold(?:s|ing)?|held", "contain, have, be true"),
    "deed": (r"deeds?", "act, use"),
    "doubt": (r"doubts?|doubted", "what is not known"),
    "dearest": (r"dearest", "most expensive"),
    "somebody": (r"somebody", "a person, a process"),
    "whoever": (r"whoever", "who, each that"),
    "nobody": (r"nobody", "no one; name who does not"),
}
"""Each avoided word, with the pattern of its forms and what to write instead."""
_PATTERN = re.compile(
    rf"\b(?:{'|'.join(f'(?P<w{number}>{forms})' for number, (forms, _) in enumerate(AVOIDED.values()))})\b",
    re.IGNORECASE,
)


_CODE = re.compile(r"``[^`\n]+``|`[^`\n]+`")


def uses(text: str, *, python: bool = False) -> Iterator[tuple[int, str]]:
    """Yield the line and the avoided word of each use in a document, or in the docstrings of a module."""
    passages = docstrings(text) if python else [(1, _prose(text))]
    for first, passage in passages:
        for match in _PATTERN.finditer(_CODE.sub(lambda code: "`" * len(code[0]), passage)):
            number = int(str(match.lastgroup)[1:])
            yield first + passage.count("\n", 0, match.start()), list(AVOIDED)[number]


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield the first line and the text of each docstring of a module, those of fields included."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield statement.lineno, text


def _prose(text: str) -> str:
    """Return a document without its fenced blocks and the targets of its links; lines keep their numbers."""
    text = re.sub(r"^```.*?^```$", lambda block: "\n" * block[0].count("\n"), text, flags=re.M | re.S)
    return re.sub(r"(?<=\]\()[^)]*(?=\))", "", text)


def files() -> list[Path]:
    """Return every document and every module whose words count."""
    documents = [*ROOT.glob("*.md"), *(ROOT / "changes").glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    modules = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    return sorted([*documents, *modules], key=str)


def counts() -> dict[str, int]:
    """Return the number of uses in each file that has any."""
    found = {}
    for file in files():
        number = len(list(uses(file.read_text(), python=file.suffix == ".py")))
        if number:
            found[file.relative_to(ROOT).as_posix()] = number
    return found


def noted() -> dict[str, int]:
    """Return the counts of the list."""
    lines = (line.rpartition(": ") for line in NOTED.read_text().splitlines())
    return {name: int(number) for name, _, number in lines}


def changed(now: Mapping[str, int], before: Mapping[str, int]) -> Iterator[str]:
    """Yield a line for each file whose count differs from that of the list."""
    for name in sorted({*now, *before}):
        new, old = now.get(name, 0), before.get(name, 0)
        if new > old:
            yield f"{name}: {new} uses of avoided words, {old} are noted; --show says which"
        elif new < old:
            yield f"{name}: {new} uses, and the list says {old}: write the list"


def main() -> int:
    """Print what differs from the list; return 1 if anything does."""
    match sys.argv[1:]:
        case ["--write"]:
            NOTED.write_text("".join(f"{name}: {number}\n" for name, number in counts().items()))
        case ["--show", *names]:
            for name in names:
                for line, word in uses(Path(name).read_text(), python=name.endswith(".py")):
                    print(f"{name}:{line}: {word} (write: {AVOIDED[word][1]})")
        case _:
            lines = list(changed(counts(), noted()))
            print("".join(f"{line}\n" for line in lines), end="")
            return int(bool(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
