"""Print the matrix as a table of expectation and outcome: ``python -m tests.matrix [WORD…]``.

The table has the rows whose name or expectation holds one of the words. The exit status is 1 if an outcome is
not the expected one."""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from cachesvc_client.console.tables import aligned

from .rows import ROWS
from .world import world


def main(words: list[str]) -> int:
    rows = [
        row for row in ROWS if not words or any(word in f"{row.name} {row.expectation}" for word in words)
    ]
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cachesvc-matrix-") as folder:
        print(f"{len(rows)} rows: a registry, cachesvc warm, then the consumers ...", file=sys.stderr)
        with world(Path(folder)) as matrix_world:
            matrix_world.begin(rows)
            outcomes = [matrix_world.outcome(row) for row in rows]
    head = ("difference", "expected", "outcome", "", "said")
    table = [
        (
            one.row.name,
            one.row.expectation,
            one.state,
            one.problem and f"WRONG: {one.problem}",
            one.reason[:150],
        )
        for one in outcomes
    ]
    print(aligned([head, *table]))
    wrong = sum(bool(one.problem) for one in outcomes)
    counts = Counter(row.expect for row in rows)
    summary = ", ".join(f"{count} {what}" for what, count in counts.most_common())
    print(f"\n{len(rows)} rows ({summary}) in {time.monotonic() - begin:.0f} s; {wrong} not as expected")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
