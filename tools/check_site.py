"""``python tools/check_site.py SITE``: fails if a page of the built site loads anything from another host.

Links that a reader clicks are fine; scripts, styles, fonts and pictures are not. Standard library only.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
"""Elements that make a browser fetch something, with the attribute that names it."""
FOREIGN = re.compile(r"^(https?:)?//")
_NOT_FETCHED = {"canonical", "next", "prev", "edit"}


class Loads(HTMLParser):
    """Collects what one page makes a browser fetch from another host."""

    def __init__(self) -> None:
        super().__init__()
        self.foreign: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        target = values.get(LOADS.get(tag, ""))
        if target and FOREIGN.match(target) and values.get("rel") not in _NOT_FETCHED:
            self.foreign.append(f"<{tag}> {target}")


def foreign_loads(site: Path) -> list[str]:
    """``page: what`` for each thing that a page of ``site``, or one of its styles, loads from elsewhere."""
    found = []
    for page in sorted(site.rglob("*.html")):
        parser = Loads()
        parser.feed(page.read_text("utf-8"))
        found += [f"{page.relative_to(site)}: {what}" for what in parser.foreign]
    for style in sorted(site.rglob("*.css")):
        urls = re.findall(r"url\([\"']?((?:https?:)?//[^)\"']+)", style.read_text("utf-8"))
        found += [f"{style.relative_to(site)}: {url}" for url in urls]
    return found


if __name__ == "__main__":
    problems = foreign_loads(Path(sys.argv[1]))
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    sys.exit(1 if problems else 0)
