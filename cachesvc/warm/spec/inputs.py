"""Read the input sets of a target: TOML -> typed, validated records."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from .toml_lines import KeyPath
from .toml_table import CALL, ID, Table, did_you_mean, toml_value

MODEL_DTYPES = ("float32", "bfloat16", "float16", "float64")
INTEGER_DTYPES = ("int64", "int32", "int16", "int8", "uint8")
TENSOR_DTYPES = (*MODEL_DTYPES, *INTEGER_DTYPES, "bool", "complex64")
FILLS = ("random", "zeros", "ones", "arange")
MAX_ELEMENTS = 1 << 34
"""Number of elements that a tensor may have."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Describes a seeded tensor.

    ``dtype``: empty for the target's. ``fill``: *random* is normal for floating point, or uniform in
    [low, high) where the spec has a bound; integers are uniform in [low, high). ``dynamic``: dimensions that
    the service varies (``mark_dynamic``).
    """

    shape: tuple[int, ...]
    dtype: str = ""
    low: float | None = None
    high: float | None = None
    fill: str = "random"
    dynamic: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Argument:
    """Describes one argument: a tensor, a list of arguments, or a plain value."""

    tensor: TensorSpec | None = None
    items: tuple[Argument, ...] | None = None
    value: Any = None


@dataclass(frozen=True, slots=True)
class InputSet:
    """Describes one input set: ``call``, a ``module:function`` that makes the arguments; or the arguments."""

    call: str = ""
    args: tuple[Argument, ...] = ()
    kwargs: dict[str, Argument] = field(default_factory=dict)


def read_input_sets(table: Table) -> dict[str, InputSet]:
    """Read the key ``inputs`` of a target: name -> input set. Raises ``SpecError``."""
    value = table.typed("inputs", (dict, str), "a table of named input sets, or module:function", {})
    if isinstance(value, str):
        return {"default": InputSet(call=table.call("inputs"))}
    sets = {}
    for name, item in value.items():
        if not ID.fullmatch(name):
            table.fail(("inputs", name), "not a name", "letters, digits and . _ - inside; at most 64")
        sets[name] = _input_set(table, ("inputs", name), item)
    return sets


def _input_set(table: Table, path: KeyPath, value: Any) -> InputSet:
    if isinstance(value, str):
        if not CALL.fullmatch(value):
            table.fail(path, f"{value!r} is not module:function", 'such as "models:long_inputs"')
        return InputSet(call=value)
    if not isinstance(value, dict):
        table.fail(
            path, f"{toml_value(value)} is not an input set", "a table of arguments, or module:function"
        )
    if not value:
        table.fail(path, "no arguments", "name the module's arguments: input_ids = {shape = [1, 128]}")
    if "shape" in value and not isinstance(value["shape"], dict):
        hint = f"one level deeper: {'.'.join(map(str, path))}.ARGUMENT = {{shape = ...}}"
        table.fail((*path, "shape"), "a tensor stands where an input set is expected", hint)
    positions = value.get("*", [])
    if not isinstance(positions, list):
        table.fail(
            (*path, "*"), f"{toml_value(positions)} is not a list", "the positional arguments, in order"
        )
    return InputSet(
        args=tuple(_argument(table, (*path, "*"), item) for item in positions),
        kwargs={key: _argument(table, (*path, key), item) for key, item in value.items() if key != "*"},
    )


def _argument(table: Table, path: KeyPath, value: Any) -> Argument:
    if isinstance(value, (bool, int, float, str)):
        return Argument(value=value)
    if isinstance(value, list):
        return Argument(items=tuple(_argument(table, path, item) for item in value))
    if isinstance(value, dict):
        return Argument(tensor=_tensor(table, path, value))
    table.fail(
        path, f"{toml_value(value)} is not an argument", "a tensor, a list, a number, a string, true or false"
    )


def _tensor(table: Table, path: KeyPath, value: dict[str, Any]) -> TensorSpec:
    known = ["shape", "dtype", "low", "high", "fill", "dynamic"]
    for key in value:
        if key not in known:
            table.fail((*path, key), "unknown key", did_you_mean(key, known))
    shape = _whole_numbers(table, (*path, "shape"), value.get("shape"), "the sizes: [1, 128]")
    if math.prod(shape) > MAX_ELEMENTS:
        table.fail((*path, "shape"), f"{math.prod(shape)} elements", f"at most {MAX_ELEMENTS}")
    dtype, fill = value.get("dtype", ""), value.get("fill", "random")
    if dtype != "":
        table.one_of((*path, "dtype"), str(dtype), TENSOR_DTYPES)
    table.one_of((*path, "fill"), str(fill), FILLS)
    low, high = (_bound(table, (*path, key), value.get(key)) for key in ("low", "high"))
    if dtype in INTEGER_DTYPES and fill == "random" and high is None:
        table.fail(
            (*path, "high"), f"missing; {dtype} values are random in [low, high)", "such as high = 1000"
        )
    if high is not None and high <= (low or 0):
        table.fail((*path, "high"), f"{high:g} is not above low ({low or 0:g})", "values are in [low, high)")
    dynamic = _whole_numbers(table, (*path, "dynamic"), value.get("dynamic", []), "dimensions: [0]")
    if any(dimension >= len(shape) for dimension in dynamic):
        table.fail((*path, "dynamic"), f"{toml_value(list(dynamic))}: the shape has {len(shape)} dimensions")
    return TensorSpec(shape, dtype, low, high, fill, dynamic)


def _bound(table: Table, path: KeyPath, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        table.fail(path, f"{toml_value(value)} is not a number")
    return float(value)


def _whole_numbers(table: Table, path: KeyPath, value: Any, what: str) -> tuple[int, ...]:
    good = isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
    if not good:
        problem = "missing" if value is None else f"{toml_value(value)} is not a list of whole numbers"
        table.fail(path, problem, what)
    return tuple(value)
