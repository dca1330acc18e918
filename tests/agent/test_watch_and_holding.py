"""Test which names an agent watches, which packs it holds within its bound, and how long it pauses."""

import pytest

from cachesvc.agent.agent import MAX_PAUSE_SECONDS, pause_after
from cachesvc.agent.holding import PresentPack, WantedPack, packs_to_hold, packs_to_remove
from cachesvc.agent.measures import Measures
from cachesvc.agent.watch import FactorPattern, Pattern
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Name
from cachesvc_client.wire.partitions import PublishedAt


def pack(number, size=10, pinned=False):
    return WantedPack(Digest.of(b"%d" % number), size, PublishedAt(number, 0), pinned)


@pytest.mark.parametrize(
    ("pattern", "chosen", "others"),
    [
        ("team/bert", ["team/bert"], ["team/bert:v1", "team/bert2", "other/bert"]),
        ("team/*", ["team/bert", "team/llm/big"], ["team/bert:v1", "other/bert"]),
        ("team/b*:v?", ["team/bert:v1"], ["team/bert", "team/bert:v10", "team/llm:v1"]),
        ("team/*:*", ["team/bert", "team/llm:v1"], ["other/bert"]),
    ],
)
def test_a_pattern_chooses_names_of_its_namespace(pattern, chosen, others):
    parsed = Pattern.parse(pattern)
    assert [name for name in [*chosen, *others] if parsed.chooses(Name.parse(name))] == chosen
    assert (parsed.exact is None) == ("*" in pattern)


@pytest.mark.parametrize(
    "text", ["", "bert", "*/bert", "team/", "team/UPPER", "team/a:", "team/a\n*", "team/" + "a*" * 300]
)
def test_what_is_no_pattern_is_refused(text):
    with pytest.raises(ValueError, match=r"allowed|name|namespace"):
        Pattern.parse(text)


def test_entries_of_other_environments_are_left_out():
    only = FactorPattern.parse("gpu=NVIDIA H*")
    assert only.chooses({"gpu": "NVIDIA H100 80GB"})
    assert not only.chooses({"gpu": "NVIDIA A100"})
    assert only.chooses({"torch": "2.13.0"})
    for text in ("gpu", "=x", "gpu="):
        with pytest.raises(ValueError, match="allowed"):
            FactorPattern.parse(text)


def test_pinned_packs_are_held_first_and_then_the_newest():
    packs = [pack(1, pinned=True), pack(2), pack(3), pack(4, size=25), pack(3)]
    assert packs_to_hold(packs, 30) == [pack(1, pinned=True), pack(3), pack(2)]
    assert packs_to_hold(packs, 9) == []
    assert packs_to_hold(packs, 1000) == [pack(1, pinned=True), pack(4, size=25), pack(3), pack(2)]


def test_only_what_must_go_goes_and_the_longest_unlisted_first():
    held = [pack(1), pack(2)]
    present = [
        PresentPack(pack(1).pack.hex, 10),
        PresentPack("new", 10, 5.0),
        PresentPack("old", 10, 50.0),
        PresentPack("listed", 10),
    ]
    assert packs_to_remove(present, held, 1000, 60.0) == []
    assert packs_to_remove(present, held, 1000, 50.0) == ["old"]
    assert packs_to_remove(present, held, 40, 60.0) == ["old"]
    assert packs_to_remove(present, held, 20, 60.0) == ["old", "new", "listed"]


def test_pauses_grow_with_failures_up_to_a_bound_and_differ_between_nodes():
    assert pause_after(0, 30.0, 0.0) == 27.0
    assert pause_after(0, 30.0, 1.0) == pytest.approx(33.0)
    pauses = [pause_after(failures, 30.0, 1.0) for failures in range(1, 40)]
    assert pauses[:4] == [2.0, 4.0, 8.0, 16.0]
    assert max(pauses) == pauses[-1] == MAX_PAUSE_SECONDS
    assert pause_after(3, 30.0, 0.0) == 4.0


def test_the_metrics_are_what_prometheus_reads():
    from prometheus_client.parser import text_string_to_metric_families

    measures = Measures()
    measures.add("rounds_total", label="done")
    measures.add("downloaded_bytes_total", 2**40)
    measures.set(packs=3)
    families = {family.name: family for family in text_string_to_metric_families(measures.text())}
    assert families["cachesvc_node_rounds"].samples[0].labels == {"result": "done"}
    assert families["cachesvc_node_downloaded_bytes"].samples[0].value == 2**40
    assert families["cachesvc_node_packs"].samples[0].value == 3
    assert len(families) == 17
