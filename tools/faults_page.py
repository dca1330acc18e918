"""``python -m tools.faults_page``: writes the table of injected faults, what `doctor` says on some hosts, and
honest resolves beside hostile connections into docs/faults.md.

`make faults` runs the services and then this; `make pages` runs this alone, over the results that are noted.
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.hostile_load import spread
from tests.faults.hosts import RESULTS as HOSTS
from tests.faults.matrix import FAULTS, RESULTS
from tools.markdown import DOCS, table, with_section

PAGE = DOCS / "faults.md"
LOAD = DOCS.parent / "benchmarks" / "results" / "hostile_load.json"
COLUMNS = ("start", "install", "first compile", "later compile", "exit")


def render() -> str:
    """Return the whole page, with the tables in their places."""
    page = with_section(PAGE.read_text(), "benchmarks/results/faults.json", _faults())
    page = with_section(page, "benchmarks/results/hosts.json", _hosts())
    return with_section(page, "benchmarks/results/hostile_load.json", _load())


def _load() -> list[str]:
    noted: dict[str, Any] = json.loads(LOAD.read_text())
    rows = [
        (
            row["name"],
            row["who"],
            *(spread(row[f"{when}_p99_ms"]) for when in ("quiet", "hostile")),
            f"{row['times']:.2f}",
            str(row["failed"]),
            f"{row['more_mib']:.0f}",
        )
        for row in noted["rows"]
    ]
    columns = ("hostile connections", "with", "quiet p99, ms", "p99 then, ms", "times", "failed", "MiB more")
    connections = f"{noted['extent']['connections']:,} connections of each kind"
    head = f"{noted['date'][:10]}, commit {noted['commit']}, {connections}:"
    return [head, "", *table(columns, rows)]


def _hosts() -> list[str]:
    noted: dict[str, list[tuple[str, str, str]]] = json.loads(HOSTS.read_text())
    rows = [
        (f"**{host}**" * (not number), *one)
        for host, said in noted.items()
        for number, one in enumerate(said)
    ]
    return table(("host", "", "", "doctor says"), rows)


def _faults() -> list[str]:
    noted: dict[str, Any] = json.loads(RESULTS.read_text())
    cells = noted["cells"]
    versions = ", ".join(f"{name} {number}" for name, number in noted["versions"].items())
    ran = [cell for row in cells.values() for cell in row.values()]
    broken = sum(bool(cell["broken"]) for cell in ran)
    rows = [
        (f"`{fault}`", *(cells.get(fault, {}).get(moment, {}).get("said", "") for moment in COLUMNS))
        for fault in FAULTS
    ]
    return [
        f"{noted['date']}, {versions}: {len(ran)} services, {broken} broken.",
        "",
        *table(("fault", *COLUMNS), rows),
    ]


if __name__ == "__main__":
    PAGE.write_text(render())
