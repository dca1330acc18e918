"""The factor table, ``compare`` and ``partition``: pure, so every machine can be tested here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachesvc_client.wire.factors import (
    BY_NAME,
    FACTORS,
    SCHEMA,
    Compatible,
    Incompatible,
    compare,
    partition,
)

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
    """Append-only: an entry that was published stays in its partition for ever."""
    for scope, digest in case["partitions"].items():
        assert partition(case["fingerprint"], filter(None, scope.split("+"))) == digest


@pytest.mark.parametrize("factor", FACTORS, ids=lambda factor: factor.name)
def test_each_row_is_whole(factor):
    assert 1 <= factor.since <= SCHEMA
    assert factor.why
    assert bool(factor.mend) == (factor.rule != "recorded") or factor.name == "settings"
    assert BY_NAME[factor.name] is factor


@given(fingerprints, scopes)
def test_like_fits_like(fingerprint, held):
    assert isinstance(compare(fingerprint, fingerprint, held), Compatible)
    assert compare(fingerprint, fingerprint, held).recorded == ()


@given(fingerprints, fingerprints, scopes)
def test_more_content_never_fits_more(mine, theirs, held):
    if not compare(mine, theirs, held):
        assert not compare(mine, theirs, {"gpu", "host"})


@given(fingerprints, fingerprints, scopes)
def test_a_verdict_has_its_reasons(mine, theirs, held):
    verdict = compare(mine, theirs, held)
    if isinstance(verdict, Incompatible):
        assert verdict.reason == str(verdict.differences[0])
        ranks = [list(BY_NAME).index(difference.factor) for difference in verdict.differences]
        assert ranks == sorted(ranks)
        assert all(difference.decides and difference.mend for difference in verdict.differences)
    else:
        assert not any(difference.decides for difference in verdict.recorded)


@given(fingerprints, fingerprints, scopes)
def test_equal_partitions_fit_each_other(mine, theirs, held):
    """Unless one does not know what the other says: absence is no value."""
    if partition(mine, held) == partition(theirs, held):
        assert compare(mine, theirs, held)


@given(fingerprints, scopes)
def test_recorded_factors_are_no_part_of_a_partition(fingerprint, held):
    without = {name: value for name, value in fingerprint.items() if BY_NAME[name].rule != "recorded"}
    assert partition(fingerprint, held) == partition(without, held)


@pytest.mark.parametrize(
    ("changed", "held", "fits"),
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
def test_what_fits_an_h200(changed, held, fits):
    mine = {name: value for name, value in {**H200, **changed}.items() if value is not None}
    verdict = compare(mine, H200, held)
    assert bool(verdict) is fits
    if not fits:
        assert [difference.factor for difference in verdict.differences] == list(changed)


def test_a_newer_schema_is_a_doubt():
    newer = {**CPU, "schema": SCHEMA + 1, "colour": "red"}
    verdict = compare(CPU, newer, ("host",))
    assert isinstance(verdict, Incompatible)
    assert verdict.differences[-1].mend == "upgrade cachesvc-client"
    assert compare(newer, CPU, ("host",))  # a newer client reads an older entry


def test_lists_say_what_is_missing():
    verdict = compare(
        {**CPU, "cpu_flags": ["avx2"]}, {**CPU, "cpu_flags": ["avx2", "avx512f", "fma"]}, ("host",)
    )
    assert verdict.differences[0].theirs == "avx512f, fma"
