"""The plots of the overview: what they count, on which day, and that everybody can read them."""

from __future__ import annotations

import re

from cachesvc.domain.days import DayOfStarts, each_day
from cachesvc.domain.retention import DAY
from cachesvc.ui.plots import HEIGHT, LEFT, WIDTH, plots_of

from .site import Browser, Page, Site


def numbers(browser: Browser, plot: str) -> list[list[str]]:
    """Return the rows of a plot's table on the overview, each without its day."""
    table = browser.get("/ui").text.partition(f'<caption id="{plot}-numbers">')[2].partition("</table>")[0]
    rows = re.findall(r'<th scope="row">\d{4}-\d\d-\d\d</th>(.*?)</tr>', table)
    return [re.findall(r">([^<]+)</td>", row) for row in rows]


def test_the_overview_plots_the_starts_of_each_day(own_site: Site) -> None:
    today = ["9", "0", "3", "0", "1"]  # hit, partial, inert, miss, unused
    assert numbers(own_site.browser("admin"), "plot-starts") == [today]
    assert numbers(own_site.browser("admin"), "plot-seconds") == [["5.9 min", "0.0 s"]]
    own_site.inside.clock.now += DAY
    own_site.start("bert", "a", "miss")
    rows = numbers(own_site.browser("admin"), "plot-starts")
    assert rows == [today, ["0", "0", "0", "1", "0"]]
    own_site.inside.clock.now += 40 * DAY
    own_site.token("later", "admin", "*")
    assert "No service has reported a start" in own_site.browser("later").page("/ui").text


def test_an_administrator_of_one_namespace_sees_its_starts_alone(own_site: Site) -> None:
    own_site.token("elsewhere", "admin", "other")
    assert "No service has reported a start" in own_site.browser("elsewhere").page("/ui").text
    assert len(numbers(own_site.browser("team admin"), "plot-starts")) == 1


def test_each_plot_has_a_title_a_description_and_a_table(shared_site: Site) -> None:
    text = shared_site.browser("admin").get("/ui").text
    page = Page(text)
    plots = page.all("svg")
    assert len(plots) == 2 and {one["role"] for one in plots} == {"img"}
    ids = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    for one in plots:
        assert set(one["aria-labelledby"].split()) <= ids
    assert len(page.all("details")) == len(page.all("desc")) == 2
    assert "13 starts from" in page.text and "9 of them hits" in page.text
    assert not [one for tag, one in page.elements if "style" in one or tag == "script"]


def test_bars_stand_on_each_other_and_in_the_frame() -> None:
    others = {"partial": 2, "inert": 0, "miss": 1, "unused": 0}
    days = [DayOfStarts(20_000 + number, {"hit": number, **others}) for number in range(30)]
    starts, seconds = plots_of(days)
    assert seconds.top == 0 and seconds.lines == () and not any(bar.pieces for bar in seconds.bars)
    assert starts.top == 40
    for bar in starts.bars:
        assert bar.x >= LEFT and bar.x + starts.bar_width <= WIDTH
        lower = [piece.y + piece.height for piece in bar.pieces]
        upper = [piece.y for piece in bar.pieces]
        assert lower[0] == HEIGHT - 24 and all(0 < y < HEIGHT for y in upper)
        assert all(abs(low - up) < 0.11 for low, up in zip(lower[1:], upper, strict=False))
    assert starts.bars[-1].labelled, "a bar of today has its date"
    assert starts.bars[-1].day == "2024-11-02" and [bar.labelled for bar in starts.bars].count(True) == 5


def test_a_day_without_starts_has_an_empty_place() -> None:
    rows = each_day([DayOfStarts(5, saved=2.0)], 4, 6)
    assert [(row.day, row.saved) for row in rows] == [(4, 0.0), (5, 2.0), (6, 0.0)]
