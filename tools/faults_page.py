"""``python -m tools.faults_page``: writes the table of injected faults into docs/faults.md.

`make faults` runs the services and then this; `make pages` runs this alone, over the results that are noted.
"""

from __future__ import annotations

import json
from typing import Any

from tests.faults.matrix import FAULTS, RESULTS
from tools.markdown import DOCS, generated, table

PAGE = DOCS / "faults.md"
BEGIN = generated("benchmarks/results/faults.json")
END = "<!-- End of what is generated. -->"
COLUMNS = ("start", "install", "first compile", "later compile", "exit")


def render() -> str:
    """Return the whole page, with the table in its place."""
    head, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    noted: dict[str, Any] = json.loads(RESULTS.read_text())
    cells = noted["cells"]
    versions = ", ".join(f"{name} {number}" for name, number in noted["versions"].items())
    ran = [cell for row in cells.values() for cell in row.values()]
    broken = sum(bool(cell["broken"]) for cell in ran)
    rows = [
        (f"`{fault}`", *(cells.get(fault, {}).get(moment, {}).get("said", "") for moment in COLUMNS))
        for fault in FAULTS
    ]
    lines = [
        BEGIN,
        "",
        f"{noted['date']}, {versions}: {len(ran)} services, {broken} broken.",
        "",
        *table(("fault", *COLUMNS), rows),
        "",
        END,
    ]
    return head + "\n".join(lines) + tail


if __name__ == "__main__":
    PAGE.write_text(render())
