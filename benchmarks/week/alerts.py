"""Judge the alert rules over the metrics of a simulated week, by a real Prometheus.

What was scraped becomes a database of Prometheus (``promtool tsdb create-blocks-from openmetrics``), with the
simulated times. A Prometheus over it answers the expression of each rule for the whole week; ``for`` is
counted here, on its answers.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.hosts import ROOT, Failed, running_process
from benchmarks.node.__main__ import free_port

RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"
STEP = 120
"""Seconds between two scrapes, and between two answers of Prometheus."""
UNITS = {"m": 60, "h": 3600, "s": 1}


class Alerts:
    """The metrics of a week; `judge` says which alert fired when."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._named = set(re.findall(r"\bcachesvc_[a-z_]+", RULES.read_text()))
        self._series: dict[str, list[str]] = {}

    def scrape(self, url: str) -> None:
        """Keep what ``/metrics`` says now, of the metrics that rules name."""
        with closing(urllib.request.urlopen(url + "/metrics")) as answer:
            text = answer.read().decode()
        at = f"{time.time():.0f}"
        for family in text_string_to_metric_families(text):
            for row in family.samples:
                if row.name in self._named:
                    labels = ",".join(f"{name}={json.dumps(value)}" for name, value in row.labels.items())
                    self._series.setdefault(row.name, []).append(f"{row.name}{{{labels}}} {row.value} {at}")

    def judge(self, began: float, causes: dict[str, list[tuple[float, float, bool]]]) -> list[dict[str, Any]]:
        """Return of each alert when it fired, in days of the week.

        ``causes``: by alert, from when to when its cause was there, in seconds of UTC, and whether it must
        fire, or may (a cause that lasted hardly long enough). It must fire meanwhile, or within its own
        ``for``, and may go on for the range of its expression. ``missing``: causes at which it did not;
        ``false``: what it said besides.
        """
        end = max(float(line.rsplit(" ", 1)[1]) for lines in self._series.values() for line in lines)
        rows = []
        with _prometheus(self._folder, self._database()) as url:
            for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]:
                spans = _spans(sorted(_fired(url, rule, began, end)))
                late = _seconds(rule.get("for", "0s")) + max(map(_seconds, _ranges(rule["expr"])), default=0)
                made = [((first, last + late), must) for first, last, must in causes.get(rule["alert"], [])]
                missing = [one for one, must in made if must and not any(_meet(one, span) for span in spans)]
                false = [span for span in spans if not any(_meet(one, span) for one, _ in made)]
                days = {
                    name: [[round((at - began) / 86_400, 2) for at in span] for span in found]
                    for name, found in (("fired", spans), ("missing", missing), ("false", false))
                }
                rows.append({"alert": rule["alert"], "causes": len(made), **days})
        return rows

    def _database(self) -> Path:
        text = self._folder / "metrics.txt"
        with text.open("w") as file:
            for name, lines in self._series.items():
                # Without a type: the names of counters need not end as OpenMetrics wants.
                file.write(f"# HELP {name} of the week\n")
                file.writelines(f"{line}\n" for line in lines)
            file.write("# EOF\n")
        place = self._folder / "prometheus"
        command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(text), str(place)]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            raise Failed(f"promtool: {made.stderr[-500:]}")
        return place


@contextmanager
def _prometheus(folder: Path, database: Path) -> Iterator[str]:
    """Run a Prometheus on loopback over a database, and yield its address."""
    config = folder / "prometheus.yml"
    config.write_text("global: {}\n")
    address = f"127.0.0.1:{free_port()}"
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={database}"]
    command += ["--storage.tsdb.retention.time=100y", f"--web.listen-address={address}", "--log.level=error"]
    with running_process(command):
        for _ in range(300):
            with suppress(OSError), closing(urllib.request.urlopen(f"http://{address}/-/ready")):
                yield f"http://{address}"
                return
            time.sleep(0.1)
        raise Failed("Prometheus does not answer")


def _fired(url: str, rule: dict[str, Any], began: float, end: float) -> Iterable[float]:
    """Yield the moments at which a rule fires: its expression held for long enough, for one of its series."""
    pending = _seconds(rule.get("for", "0s"))
    query = {"query": rule["expr"], "start": f"{began:.0f}", "end": f"{end:.0f}", "step": str(STEP)}
    body = urllib.parse.urlencode(query).encode()
    with closing(urllib.request.urlopen(f"{url}/api/v1/query_range", body)) as answer:
        result = json.load(answer)["data"]["result"]
    moments: set[float] = set()
    for series in result:
        since = last = 0.0
        for at, _ in series["values"]:
            since = since if at - last <= STEP else at
            last = at
            if at - since >= pending:
                moments.add(at)
    return moments


def _ranges(expression: str) -> list[str]:
    return re.findall(r"\[(\w+)\]", expression)


def _meet(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def _spans(moments: list[float]) -> list[tuple[float, float]]:
    spans: list[tuple[float, float]] = []
    for at in moments:
        if spans and at - spans[-1][1] <= 1800:
            spans[-1] = (spans[-1][0], at)
        else:
            spans.append((at, at))
    return spans


def _seconds(text: str) -> int:
    return int(text[:-1]) * UNITS[text[-1]]
