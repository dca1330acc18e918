"""Simulate a week of a registry, and compare what coverage says with how the next start goes.

``python -m benchmarks.week``: 300 deploys over 20 names, model changes, new environments, typing mistakes,
two upgrades of torch, a full disk, an expired root, a dead Redis, clocks that are off by days, and a database
that is restored from an older backup. Registry, resolve, acceptance, reports and coverage are the real ones,
over HTTP; a start compiles nothing, and an entry has one small file (`world`). The clock is simulated. Before
each start coverage is asked as a gate asks it, for the environment and the model that is deployed, and once
more without the model; each disagreement of the first is listed. Every two minutes the metrics are scraped,
and at the end a real Prometheus judges the alert rules over them (`alerts`). A night over PostgreSQL, Redis
and S3 follows, for the alerts of what breaks there (`night`). Needs root (a small disk is mounted), Redis and
Prometheus; the night PostgreSQL and Ceph. Exit status 1 if less than 99.5 % agree, or an alert is missing or
false.
"""

from __future__ import annotations

from . import clock  # first: nothing may know another time

# isort: split
import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.conditions import commit
from benchmarks.hosts import ROOT, running_process
from benchmarks.node.__main__ import free_port

from . import night
from .alerts import Alerts
from .life import DAY, Week
from .world import Served


def main() -> int:
    """Run the simulation, write the report, and return the exit status."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--seed", type=int, default=45)
    options.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "results" / "week.json")
    options.add_argument("--days", type=float, default=7.0, help="end after so many days; default: 7")
    options.add_argument("--without-night", action="store_true", help="only the week")
    chosen = options.parse_args()
    sys.setswitchinterval(0.0002)  # client and registry are threads of this process, and wait for each other
    with tempfile.TemporaryDirectory(prefix="cachesvc-week-") as text:
        folder = Path(text)
        with _disk(folder, "2g"), _disk(folder / "data", "512m"):
            report = _live(folder, chosen.seed, chosen.days)
        report["night"] = [] if chosen.without_night else _night(folder / "night")
    chosen.json.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{report['agreed']} of {report['questions']} agree: {report['percent']} %; written: {chosen.json}")
    judged = [*report["alerts"], *report["night"]]
    wrong = [row for row in judged if row["missing"] or row["false"]]
    fired = {row["alert"] for row in judged if row["fired"]}
    print(f"{len(fired)} of {len(report['alerts'])} alerts fired")
    print(f"{len(wrong)} alerts are missing or false: {', '.join(row['alert'] for row in wrong) or 'none'}")
    return int(report["percent"] < 99.5 or bool(wrong))


@contextlib.contextmanager
def _disk(place: Path, size: str) -> Iterator[None]:
    """Mount a small disk: one can be filled, and none waits for a write."""
    place.mkdir(mode=0o700, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", place], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def _night(folder: Path) -> list[dict[str, Any]]:
    folder.mkdir()
    return night.live(folder)


def _live(folder: Path, seed: int, days: float) -> dict[str, Any]:
    alerts = Alerts(folder)
    began = time.monotonic()
    with _Redis(folder) as redis, contextlib.ExitStack() as closing:
        served = Served(folder, redis.url)
        served.start()
        closing.callback(served.stop)
        served.pin()
        shutil.move(served.data / "root.key", folder / "root.key")
        clock.move_to(time.time() + 361 * DAY)  # the root is of last year: it expires on the fourth day
        served.make_token()
        served.sign_anew()
        week = Week(served, folder, seed, alerts, redis.toggle)
        week.days = days
        week.run()
        week.compiling()
    counts = week.counts
    return {
        "commit": commit(),
        "seed": seed,
        "seconds": round(time.monotonic() - began),
        "questions": counts.questions,
        "agreed": counts.agreed,
        "percent": round(100 * counts.agreed / counts.questions, 2),
        "unknown": counts.unknown,
        "without_model": {
            "agreed": counts.agreed_without,
            "percent": round(100 * counts.agreed_without / counts.questions, 2),
        },
        "outcomes": dict(sorted(counts.outcomes.items())),
        "events": counts.events,
        "alerts": alerts.judge(week.began, week.causes),
        "disagreements": counts.disagreements,
    }


class _Redis:
    """A Redis on loopback that can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self._command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir"]
        self._command.append(str(folder))
        self.url = f"redis://127.0.0.1:{port}/0"
        self._running: Any = None

    def toggle(self) -> None:
        """Kill it, or start it."""
        if self._running is not None:
            self._running.__exit__(None, None, None)
            self._running = None
            return
        self._running = running_process(self._command, stdout=subprocess.DEVNULL)
        self._running.__enter__()
        time.sleep(0.5)

    def __enter__(self) -> _Redis:
        self.toggle()
        return self

    def __exit__(self, *_: object) -> None:
        if self._running is not None:
            self.toggle()


if __name__ == "__main__":
    sys.exit(main())
