"""Test the factor table, ``compare`` and ``partition``.

These functions are pure, so the tests cover every kind of machine here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cachesvc_client.wire.compare import (
    Compatible,
    Mismatch,
    compare,
    differences,
    explanatory_differences,
    nearness,
)
from cachesvc_client.wire.factors import BY_NAME, FACTORS, SCHEMA
from cachesvc_client.wire.facts import MAX_LISTED, MAX_TEXT, bounded, union
from cachesvc_client.wire.partitions import partition

GOLDEN = Path(__file__).parents[1] / "golden" / "fingerprints-1.json"
CASES = json.loads(GOLDEN.read_text())
H200 = CASES["h200"]["fingerprint"]
CPU = CASES["cpu"]["fingerprint"]

names = st.sampled_from([factor.name for factor in FACTORS])
fact = (
    st.text(max_size=8)
    | st.integers(0, 99)
    | st.lists(st.sampled_from(["avx2", "fma", "sse2"]), max_size=3, unique=True)
)
fingerprints = st.dictionaries(names, fact)
scopes = st.sets(st.sampled_from(["gpu", "host"]))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_golden_partitions(case):
    """Partitions never change: a published entry stays in its partition for ever. Rows are only added."""
    for scope, digest in case["partitions"].items():
        assert partition(case["fingerprint"], filter(None, scope.split("+"))) == digest


@pytest.mark.parametrize("factor", FACTORS, ids=lambda factor: factor.name)
def test_each_row_is_complete(factor):
    assert 1 <= factor.since <= SCHEMA
    assert factor.why
    assert bool(factor.fix) == (factor.decider != "nobody") or factor.name == "model"
    assert BY_NAME[factor.name] is factor


@given(fingerprints, scopes)
def test_equal_fingerprints_fit(fingerprint, scopes):
    assert isinstance(compare(fingerprint, fingerprint, scopes), Compatible)
    assert compare(fingerprint, fingerprint, scopes).recorded == ()


@given(fingerprints, fingerprints, scopes)
def test_an_entry_with_more_facts_never_fits_more(mine, theirs, scopes):
    if not compare(mine, theirs, scopes):
        assert not compare(mine, theirs, {"gpu", "host"})


@given(fingerprints, fingerprints, scopes)
def test_a_verdict_has_its_reasons(mine, theirs, scopes):
    verdict = compare(mine, theirs, scopes)
    if isinstance(verdict, Mismatch):
        assert verdict.reason == str(verdict.differences[0])
        ranks = [list(BY_NAME).index(difference.factor) for difference in verdict.differences]
        assert ranks == sorted(ranks)
        assert all(difference.decides and difference.fix for difference in verdict.differences)
        assert all(BY_NAME[difference.factor].group == "environment" for difference in verdict.differences)
    else:
        assert not any(difference.decides for difference in verdict.recorded)


@given(fingerprints, fingerprints, scopes)
def test_equal_partitions_fit_each_other(mine, theirs, scopes):
    """Two fingerprints do not fit if one lacks a fact of the other: absence is no value."""
    if partition(mine, scopes) == partition(theirs, scopes):
        assert compare(mine, theirs, scopes)


@given(fingerprints, scopes)
def test_only_deciding_factors_are_part_of_a_partition(fingerprint, scopes):
    without = {name: value for name, value in fingerprint.items() if BY_NAME[name].decider == "cachesvc"}
    assert partition(fingerprint, scopes) == partition(without, scopes)


@pytest.mark.parametrize(
    ("changed", "scopes", "fits"),
    [
        ({"torch": "2.11.1+cu130"}, ("gpu",), False),
        ({"torch": None}, ("gpu",), False),
        ({"triton": None}, ("gpu",), True),
        ({"gpu": "NVIDIA H100"}, ("gpu",), False),
        ({"gpu": "NVIDIA H100"}, ("host",), True),
        ({"gpu": None}, ("gpu",), False),
        ({"compute_capability": "12.0"}, ("gpu", "host"), False),
        ({"driver": "1"}, ("gpu",), True),
        ({"cpu_isa": "avx2"}, ("gpu",), True),
        ({"cpu_isa": "avx2"}, ("host",), False),
        ({"cpu_isa": None}, ("host",), False),
        ({"cpu_flags": ["avx2", "avx512f", "fma", "new"]}, ("host",), True),
        ({"cpu_flags": ["avx2", "fma"]}, ("host",), False),
        ({"cxx": None}, ("host",), True),
        ({"cxx": "g++ 13.2.0"}, ("host",), False),
        ({"libc": "2.40"}, ("host",), True),
        ({"libc": "2.4"}, ("host",), False),
        ({"libc": "3.0"}, ("host",), True),
        ({"threads": None}, ("host",), True),
        ({"threads": 5}, ("host",), False),
        ({"settings": ["CI=1"]}, ("host", "gpu"), True),
        ({"platform": "linux-aarch64"}, (), False),
    ],
)
def test_some_fingerprints_fit_an_h200(changed, scopes, fits):
    mine = {name: value for name, value in {**H200, **changed}.items() if value is not None}
    verdict = compare(mine, H200, scopes)
    assert bool(verdict) is fits
    if not fits:
        assert [difference.factor for difference in verdict.differences] == list(changed)


def test_a_newer_schema_is_a_doubt():
    newer = {**CPU, "schema": SCHEMA + 1, "colour": "red"}
    verdict = compare(CPU, newer, ("host",))
    assert isinstance(verdict, Mismatch)
    assert verdict.differences[-1].fix == "upgrade cachesvc-client"
    assert compare(newer, CPU, ("host",))  # A newer client reads an older entry.


def test_a_difference_of_lists_names_the_missing_values():
    verdict = compare(
        {**CPU, "cpu_flags": ["avx2"]}, {**CPU, "cpu_flags": ["avx2", "avx512f", "fma"]}, ("host",)
    )
    assert verdict.differences[0].theirs == "avx512f, fma"


def test_the_cause_is_named_before_its_consequences():
    graphs = {"dtype": ["float32"], "shapes": ["4x8"], "operations": ["linear x1"], "settings": []}
    entry = {**CPU, **graphs}
    mine = {**entry, "dtype": ["bfloat16"], "operations": ["linear x2"], "settings": ["CI=1"]}
    rows = differences(mine | {"torch": "0.1"}, entry, ("host",))
    assert [one.factor for one in rows] == ["torch", "dtype", "settings", "operations"]
    assert [one.decides for one in rows] == [True, False, False, False]
    assert explanatory_differences(rows) == rows
    assert str(rows[1]) == "dtype: here bfloat16, entry float32" and rows[1].fix in rows[1].advice


def test_a_workload_that_the_entry_covers_is_no_difference_and_never_a_refusal():
    entry = {**CPU, "shapes": ["4x8", "8x8"], "model": "sha256:a"}
    assert differences({**CPU, "shapes": ["8x8"]}, entry, ("host",)) == ()
    [shapes] = differences({**CPU, "shapes": ["9x8"]}, entry, ("host",))
    assert (shapes.mine, shapes.theirs) == ("9x8", "4x8, 8x8")
    assert compare({**CPU, "shapes": ["9x8"], "model": "sha256:b"}, entry, ("host",))
    assert explanatory_differences(differences({**CPU, "model": "sha256:b"}, entry, ())) == (), (
        "a comment is no reason"
    )


def test_a_row_that_decides_nothing_does_not_raise_the_schema():
    assert max(factor.since for factor in FACTORS if factor.decider == "cachesvc") == SCHEMA


hostile = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("9" * 6000) | st.just("²"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.dictionaries(names | st.just("schema") | st.text(max_size=5), hostile),
    st.dictionaries(names | st.just("schema") | st.text(max_size=5), hostile),
    scopes,
)
def test_compare_answers_whatever_a_newer_side_sends(mine, theirs, scopes):
    """The values are such as no client of today writes: overlong, nested, of other types."""
    rows = differences(mine, theirs, scopes)
    assert all(len(str(one)) < 4 * MAX_TEXT * 3 for one in rows)
    assert bool(compare(mine, theirs, scopes)) is not any(one.decides for one in rows)


@given(st.dictionaries(st.text(max_size=5), hostile))
def test_facts_on_the_wire_are_bounded(facts):
    for value in bounded(facts).values():
        assert isinstance(value, (bool, int, str, list))
        texts = value if isinstance(value, list) else [value]
        assert all(len(str(text)) <= MAX_TEXT for text in texts if not isinstance(text, int))


def test_a_union_has_every_value_once():
    ranks = [{"device": ["cuda:0"], "grad": "no_grad"}, {"device": ["cuda:1", "cuda:0"], "shapes": {"4x32"}}]
    assert union(ranks) == {"device": ["cuda:0", "cuda:1"], "grad": ["no_grad"], "shapes": ["4x32"]}
    many = [{"operations": [f"op{number}"]} for number in range(2 * MAX_LISTED)]
    assert len(union(many)["operations"]) == MAX_LISTED


def test_long_lists_stay_different():
    left, right = ({"operations": [f"op{n}" for n in range(100)] + [last]} for last in ("x", "y"))
    cut = bounded(left)["operations"], bounded(right)["operations"]
    assert len(cut[0]) == MAX_LISTED and cut[0] != cut[1]
    assert bounded(left) == bounded({"operations": list(reversed(left["operations"]))})


@given(fingerprints, st.lists(fingerprints, min_size=1, max_size=4), scopes)
@example(
    {"torch": "2.13.0", "libc": "2.36", "settings": []},
    [{"torch": "2.12.1", "libc": "2.36"}, {"torch": "2.13.0", "libc": "2.39", "settings": ["CI=1"]}],
    {"host"},
)
def test_who_knows_all_differences_names_the_same_first_one(mine, entries, scopes):
    """A registry compares environments, and so a report of a miss; `explain` knows the workload and the
    settings beside them."""
    every = [explanatory_differences(differences(mine, theirs, scopes)) for theirs in entries]
    by_registry = min((tuple(row for row in rows if row.decides) for rows in every), key=nearness)
    by_explain = min(every, key=nearness)
    assert bool(by_registry) == any(row.decides for row in by_explain)
    if by_registry:
        assert by_explain[0].factor == by_registry[0].factor
