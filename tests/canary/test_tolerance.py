"""Test when two results count as equal."""

from __future__ import annotations

import math

import pytest
import torch

from cachesvc_client.canary import tolerance
from cachesvc_client.canary.tolerance import TOLERANCES, compare, differ


def test_the_worst_tensor_by_its_own_scale_is_reported():
    worst = compare([(1.0, 1000.0), (0.1, 0.1), (0.0, 0.0)], rtol=0.01, atol=0.001)
    assert (worst.difference, worst.scale, worst.allowed) == (0.1, 0.1, 0.002)
    assert not worst.passed
    assert compare([(0.0, 0.0)], rtol=0.0, atol=0.0).passed
    assert compare([(1.0, 100.0)], rtol=0.01, atol=0.0).passed


@pytest.mark.parametrize("difference", [math.nan, math.inf])
def test_nan_does_not_pass(difference):
    compared = compare([(0.0, 1.0), (difference, 1.0)], rtol=1.0, atol=1.0)
    assert not compared.passed


def test_an_output_without_tensors_is_a_note():
    assert compare([], rtol=0.0, atol=0.0).note


@pytest.mark.parametrize(
    ("dtypes", "like"),
    [
        ((), "float32"),
        (("int64",), "float32"),
        (("float32",), "float32"),
        (("float32", "bfloat16", "int64"), "bfloat16"),
        (("float16", "float64"), "float16"),
        (("float8_e4m3fn", "float32"), "bfloat16"),
        (("complex64",), "float32"),
    ],
)
def test_the_loosest_dtype_of_the_computation_decides(dtypes, like):
    assert tolerance.tolerance(dtypes) == TOLERANCES[like]


def test_a_large_tensor_is_compared_whole(monkeypatch):
    monkeypatch.setattr(tolerance, "_PIECE", 7)
    reference = torch.arange(100.0).reshape(10, 10).t()
    assert differ(reference.clone(), reference) == (0.0, 99.0)
    other = reference.clone()
    other[9, 9] += 5
    assert differ(other, reference) == (5.0, 99.0)
    other[3, 3] = math.nan
    assert math.isnan(differ(other, reference)[0])


def test_infinities_and_nans_at_the_same_places_count_as_equal():
    values = torch.tensor([math.inf, -math.inf, math.nan, 2.0])
    assert differ(values, values.clone()) == (0.0, 2.0)
    assert differ(torch.tensor([]), torch.tensor([])) == (0.0, 0.0)
