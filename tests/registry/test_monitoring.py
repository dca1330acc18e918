"""Test what operators watch with: alert rules, dashboard and documents name metrics that a registry has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from registry_making import Server, make, ok

from cachesvc.agent.measures import Measures
from tests.services.process import absent

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"
RULE_TESTS = RULES.with_name("alerts_test.yml")
DASHBOARD = ROOT / "deploy" / "grafana" / "cachesvc.json"
OF_HISTOGRAMS = ("_bucket", "_count", "_sum")


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[set[str]]:
    """Return the names of the series of a registry that shows all of its metrics."""
    server = Server(tmp_path_factory.mktemp("monitored") / "data")
    server.env = {"CACHESVC_SERVER_METRICS_NAMESPACES": "true", "CACHESVC_SERVER_QUOTA_BYTES": "1GiB"}
    with server.running():
        ok(server.api().publish(make(server.key)))
        yield series(httpx.get(server.url + "/metrics", trust_env=False).text)


def series(text: str) -> set[str]:
    names: set[str] = set()
    for family in text_string_to_metric_families(text):
        ends = {"counter": ("_total",), "histogram": OF_HISTOGRAMS}.get(family.type, ("",))
        names.update(family.name + end for end in ends)
    return names


def expressions(loaded: Any) -> Iterator[str]:
    """Yield the PromQL of rules or of a dashboard."""
    if isinstance(loaded, list):
        for item in loaded:
            yield from expressions(item)
    elif isinstance(loaded, dict):
        for name, value in loaded.items():
            if name in ("expr", "series", "query") and isinstance(value, str):
                yield value
            else:
                yield from expressions(value)


def metrics_named(text: str) -> set[str]:
    return set(re.findall(r"\bcachesvc_[a-z_]+", text))


def promtool(*arguments: object) -> subprocess.CompletedProcess[str]:
    program = shutil.which("promtool") or absent("promtool", "prometheus")
    return subprocess.run(
        [program, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )


def test_rules_and_dashboard_name_metrics_that_exist(exposed: set[str]) -> None:
    for path, least in ((RULES, 9), (RULE_TESTS, 9), (DASHBOARD, 18)):
        loaded = (json.loads if path.suffix == ".json" else yaml.safe_load)(path.read_text())
        named = metrics_named(" ".join(expressions(loaded)))
        assert len(named) >= least, path
        assert named - exposed == set(), path


def test_documents_name_metrics_that_exist(exposed: set[str]) -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "recipes").glob("*.md")]
    found = {name for page in pages for name in re.findall(r"`(cachesvc_[a-z_]+)", page.read_text())}
    found -= {"cachesvc_client", "cachesvc_index", "cachesvc_write"}
    found -= {"cachesvc_mirror_lag_seconds", "cachesvc_mirror_behind_revisions"}  # see test_mirror_writes
    assert len(found) >= 8
    assert found - exposed - metrics_named(Measures().text()) == set()
    assert metrics_named("`cachesvc_blob_bytes`") - exposed  # without _total there is no such series


def test_every_metric_of_the_registry_is_on_the_dashboard_or_in_a_rule(exposed: set[str]) -> None:
    watched = metrics_named(RULES.read_text() + DASHBOARD.read_text())
    ours = {name for name in exposed if name.startswith("cachesvc_")}
    unwatched = {"cachesvc_blob_calls_total", "cachesvc_blob_seconds_total", "cachesvc_request_seconds_count"}
    unwatched |= {"cachesvc_request_seconds_sum", "cachesvc_namespaces", "cachesvc_revisions"}
    unwatched |= {"cachesvc_namespace_entries"}
    assert ours - watched == unwatched


def test_each_panel_has_a_place_of_its_own() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        box = panel["gridPos"]
        cells = {
            (x, y) for x in range(box["x"], box["x"] + box["w"]) for y in range(box["y"], box["y"] + box["h"])
        }
        assert not cells & taken and all(x < 24 for x, _ in cells), panel["title"]
        taken |= cells


def test_promtool_accepts_the_rules_and_their_tests(tmp_path: Path) -> None:
    checked = promtool("check", "rules", RULES)
    assert checked.returncode == 0 and "13 rules" in checked.stdout, checked.stdout + checked.stderr
    tested = promtool("test", "rules", RULE_TESTS)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    named = {
        rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    }
    for case in yaml.safe_load(RULE_TESTS.read_text())["tests"]:
        assert {row["alertname"] for row in case["alert_rule_test"]} == named
    # A rule that is wrong fails its test.
    (tmp_path / "alerts.yml").write_text(RULES.read_text().replace("> 0.9\n", "> 0.99\n"))
    (tmp_path / "alerts_test.yml").write_text(RULE_TESTS.read_text())
    broken = promtool("test", "rules", tmp_path / "alerts_test.yml")
    assert broken.returncode != 0 and "CachesvcQuotaNearlyFull" in broken.stdout + broken.stderr
