"""Counts what an agent does, and shows it as Prometheus reads it (text format 0.0.4)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

_COUNTERS = {
    "rounds_total": "Rounds over the watched names, by how they ended.",
    "downloaded_bytes_total": "Bytes of packs that were downloaded from the registry or its store.",
    "peer_received_bytes_total": "Bytes of packs that other agents gave.",
    "peer_sent_bytes_total": "Bytes of packs that were given to other agents.",
    "peer_failures_total": "Other agents that gave nothing when they were asked, by reason.",
    "downloads_total": "Packs that were downloaded.",
    "evicted_total": "Packs that were removed.",
    "refused_total": "Revisions and answers that were refused, by the code of the error.",
}
_GAUGES = {
    "names": "Names with their tags that are watched.",
    "revisions": "Revisions that the lists offer.",
    "packs": "Packs in the store.",
    "held_bytes": "Bytes of the packs in the store.",
    "bound_bytes": "Bytes of packs that the store holds, at most.",
    "left_out": "Packs of listed revisions for which the bound has no room.",
    "last_round_seconds": "Seconds that the last round took.",
    "listed_timestamp_seconds": "When the oldest list was last confirmed by the registry (seconds of UTC).",
    "failures": "Rounds that failed since the last one that did not.",
}
_LABELS = {"rounds_total": "result", "refused_total": "code", "peer_failures_total": "reason"}
"""The one label of those counters that have one."""
_PREFIX = "cachesvc_node_"


class Measures:
    """Holds the numbers of one agent. Thread-safe."""

    def __init__(self, now: float | None = None) -> None:
        self._lock = threading.Lock()
        self._counters: dict[tuple[str, str], float] = {(name, ""): 0.0 for name in _COUNTERS}
        for name in _LABELS:
            del self._counters[name, ""]
        self._gauges: dict[str, float] = dict.fromkeys(_GAUGES, 0.0)
        self.alive_at = time.monotonic() if now is None else now
        """Value of ``time.monotonic`` at the last step of the agent's loop."""
        self.ready = False
        """Whether services can start from the lists: those of a first round, or of an earlier run."""

    def add(self, name: str, value: float = 1.0, label: str = "") -> None:
        """Adds to a counter. ``label``: the value of its one label, if it has one."""
        with self._lock:
            self._counters[name, label] = self._counters.get((name, label), 0.0) + value

    def set(self, **values: float) -> None:
        """Sets gauges."""
        unknown = values.keys() - _GAUGES.keys()
        assert not unknown, unknown
        with self._lock:
            self._gauges.update(values)

    def step(self) -> None:
        """Notes that the loop goes on."""
        self.alive_at = time.monotonic()

    def value(self, name: str, label: str = "") -> float:
        """Returns a counter or a gauge; 0 for one that was never counted."""
        with self._lock:
            return self._gauges.get(name, self._counters.get((name, label), 0.0))

    def text(self) -> str:
        """Returns all numbers as Prometheus reads them."""
        with self._lock:
            counters, gauges = dict(self._counters), dict(self._gauges)
        lines: list[str] = []
        for name, help_text in _COUNTERS.items():
            rows = [(label, value) for (row, label), value in sorted(counters.items()) if row == name]
            lines += _family(name, "counter", help_text, rows)
        for name, help_text in _GAUGES.items():
            lines += _family(name, "gauge", help_text, [("", gauges[name])])
        return "\n".join(lines) + "\n"


def _family(name: str, kind: str, help_text: str, rows: Iterable[tuple[str, float]]) -> list[str]:
    full = _PREFIX + name
    lines = [f"# HELP {full} {help_text}", f"# TYPE {full} {kind}"]
    for label, value in rows:
        labels = f'{{{_LABELS[name]}="{label}"}}' if label else ""
        lines.append(f"{full}{labels} {value:.15g}")
    return lines
