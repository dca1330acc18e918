"""Lay out plots of bars by day, which a template draws as SVG, with a table of the same numbers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cachesvc.domain.days import DayOfStarts
from cachesvc.domain.retention import DAY
from cachesvc_client.wire.requests.reports import STATES

from .text import count_text, seconds_text

WIDTH, HEIGHT = 640, 190
"""Size of a plot in its own units."""
LEFT, TOP, BOTTOM = 92, 14, 24
"""Units beside, above and below the bars, for the labels of the axes: they are larger on small screens."""
LABEL_EVERY = 7
"""Days from one label of the axis to the next."""
SPACE = 0.25
"""Share of a bar's place that stays empty."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One series of a bar. ``text``: its value as people read it."""

    series: str
    y: float
    height: float
    text: str


@dataclass(frozen=True, slots=True)
class Bar:
    """The bar of a day. ``values``: of each series, as people read them."""

    day: str
    x: float
    pieces: tuple[Piece, ...]
    values: tuple[str, ...]
    labelled: bool


@dataclass(frozen=True, slots=True)
class Line:
    """A line across the plot, and its label."""

    y: float
    label: str


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot of stacked bars. ``summary``: what it shows, in a sentence. ``top``: the value at its upper
    edge; 0 if there is nothing to show."""

    id: str
    title: str
    summary: str
    series: tuple[str, ...]
    bars: tuple[Bar, ...]
    lines: tuple[Line, ...]
    top: float
    bar_width: float

    # The same for every plot; the template reads them here.
    width = WIDTH
    height = HEIGHT
    left = LEFT


def plots_of(days: Sequence[DayOfStarts]) -> tuple[Plot, Plot]:
    """Returns the plots of starts by outcome, and of seconds saved and spent."""
    starts = [tuple(float(day.states[state]) for state in STATES) for day in days]
    seconds = [(max(0.0, day.saved), max(0.0, day.spent)) for day in days]
    names = [_day_text(day.day) for day in days]
    hits = sum(day.states["hit"] for day in days)
    total = sum(map(sum, starts))
    counted = (
        f"{count_text(int(total))} starts from {names[0]} to {names[-1]}, {count_text(hits)} of them hits."
    )
    timed = (
        f"From {names[0]} to {names[-1]} restores saved {seconds_text(sum(one[0] for one in seconds))}, and "
        f"compiling took {seconds_text(sum(one[1] for one in seconds))}."
    )
    return (
        _plot(
            "starts",
            "Starts by outcome, each day",
            counted,
            STATES,
            names,
            starts,
            _count,
            round_up=_round_up,
        ),
        _plot(
            "seconds",
            "Time saved and spent, each day",
            timed,
            ("saved", "spent"),
            names,
            seconds,
            seconds_text,
            round_up=_round_up_seconds,
        ),
    )


def _plot(
    name: str,
    title: str,
    summary: str,
    series: tuple[str, ...],
    days: Sequence[str],
    values: Sequence[tuple[float, ...]],
    say: Callable[[float], str],
    *,
    round_up: Callable[[float], float],
) -> Plot:
    top = round_up(max(map(sum, values), default=0.0))
    step = (WIDTH - LEFT) / max(1, len(days))
    bars = []
    for place, (day, of_day) in enumerate(zip(days, values, strict=True)):
        labelled = (len(days) - 1 - place) % LABEL_EVERY == 0
        x = round(LEFT + step * (place + SPACE / 2), 1)
        bars.append(Bar(day, x, _pieces(series, of_day, top, say), tuple(map(say, of_day)), labelled))
    lines = [Line(_y(top * share, top), say(top * share)) for share in (0.0, 0.5, 1.0)] if top else []
    return Plot(
        f"plot-{name}", title, summary, series, tuple(bars), tuple(lines), top, round(step * (1 - SPACE), 1)
    )


def _pieces(
    series: tuple[str, ...], values: tuple[float, ...], top: float, say: Callable[[float], str]
) -> tuple[Piece, ...]:
    pieces, below = [], 0.0
    for name, value in zip(series, values, strict=True):
        if value > 0:
            upper = _y(below + value, top)
            pieces.append(Piece(name, upper, round(_y(below, top) - upper, 1), say(value)))
            below += value
    return tuple(pieces)


def _y(value: float, top: float) -> float:
    return round(HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / top, 1)


def _round_up(value: float) -> float:
    """Returns the next number with one digit that counts, such as 20, 40 or 500."""
    if value <= 0:
        return 0.0
    size = 10.0 ** math.floor(math.log10(value))
    return next(step * size for step in (1, 2, 4, 5, 6, 8, 10) if value <= step * size)


def _round_up_seconds(value: float) -> float:
    """Returns the next such number of days, hours, minutes or seconds."""
    unit = next((size for size in (86_400, 3600, 60) if value >= size), 1)
    return _round_up(value / unit) * unit


def _count(number: float) -> str:
    return count_text(int(number)) if number == int(number) else f"{number:.1f}"


def _day_text(day: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(day * DAY))
