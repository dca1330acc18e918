"""Describe the warm spec as JSON Schema, for editors and CI; made of what `spec` and `inputs` check with.

A schema sees less than `load_spec`: neither which files exist, nor which bounds depend on other keys.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Any

from cachesvc_client.environment import march
from cachesvc_client.wire.names import Namespace, Tag

from . import inputs, spec, toml_table

Schema = dict[str, Any]

DIALECT = "http://json-schema.org/draft-07/schema#"
"""The version that editors of TOML read."""
_NAME = f"{Namespace.pattern.pattern}/{Namespace.pattern.pattern}(?::{Tag.pattern.pattern})?"
_OF_TARGETS_ALONE = ("id", "factory", "script", "vllm", "args", "inputs", "files", "nproc")
"""Keys of a target that ``[defaults]`` cannot have."""


def spec_schema() -> Schema:
    """Return the schema of a whole spec. Each field of ``TargetSpec`` has a description of its own here."""
    keys = _target_keys()
    target = {name: keys[name] for name in (field.name for field in dataclasses.fields(spec.TargetSpec))}
    options = {name: value for name, value in target.items() if name not in _OF_TARGETS_ALONE}
    return {
        "$schema": DIALECT,
        "title": "Warm spec of cachesvc",
        "type": "object",
        "required": ["name", "target"],
        "additionalProperties": False,
        "properties": {
            "name": _text("namespace/name[:tag], under which entries are published", _NAME),
            "defaults": {**_table(options), "description": "What targets have that do not say otherwise."},
            "target": {"type": "array", "minItems": 1, "items": {**_table(target), **_types_of_targets()}},
        },
        "definitions": {"argument": _argument(), "input_set": _input_set()},
    }


def _types_of_targets() -> Schema:
    """Return what a target of each type must have and must not have."""
    kinds = ("factory", "script", "vllm")
    return {
        "required": ["id"],
        "oneOf": [{"required": [kind]} for kind in kinds],
        "allOf": [
            _when("factory", ("files", "nproc"), {"args": _plain_table("keyword arguments of the factory")}),
            _when("script", spec.DECIDED_BY_MODEL, {"args": _texts("arguments of the script")}),
            _when("vllm", spec.NOT_OF_ENGINES, {"args": _engine_arguments()}),
            _when("options", (), {"modes": {"const": ["default"]}}),
            {
                "if": {"properties": {"kind": {"const": "training"}}, "required": ["kind"]},
                "then": {"properties": {"grad": {"const": "grad"}}},
            },
        ],
    }


def _when(key: str, refused: Iterable[str], properties: Schema) -> Schema:
    return {
        "if": {"required": [key]},
        "then": {"properties": {**dict.fromkeys(refused, False), **properties}},
    }


def _engine_arguments() -> Schema:
    refused = dict.fromkeys(spec.OWN_ARGUMENTS, False)
    sizes: Schema = {name: {"const": 1} for name in spec.SIZES}
    ranks: Schema = {spec.RANKS: {"type": "integer", "minimum": 1, "maximum": spec.MAX_RANKS}}
    return {**_plain_table("engine arguments"), "properties": {**refused, **ranks, **sizes}}


def _target_keys() -> Schema:
    call = toml_table.CALL.pattern
    return {
        "id": _text("the target's name in the report and in the entry", toml_table.ID.pattern),
        "factory": _text("module:function that returns the model, or (model, inputs)", call),
        "script": _text("a program that compiles by itself, relative to the spec", ".+"),
        "vllm": _text("the folder of an engine's model, relative to the spec", ".+"),
        "nproc": _whole("ranks of a script, which torchrun starts", 1, spec.MAX_RANKS),
        "args": {"type": ["object", "array"], "description": "arguments of the factory, script or engine"},
        "files": _texts("what else decides what a script or an engine compiles"),
        "inputs": {
            "description": "named input sets, or module:function that makes the arguments",
            "anyOf": [
                _text("", call),
                {
                    "type": "object",
                    "propertyNames": {"pattern": _whole_text(toml_table.ID.pattern)},
                    "additionalProperties": {"$ref": "#/definitions/input_set"},
                },
            ],
        },
        "dtypes": _choices("what the model is cast to", inputs.MODEL_DTYPES),
        "modes": _choices("modes of torch.compile", spec.MODES),
        "options": _plain_table("options of inductor, instead of a mode"),
        "dynamic": {"enum": [True, False, "auto"], "description": "of torch.compile"},
        "fullgraph": {"type": "boolean", "description": "a graph break is an error"},
        "kind": _choice("one call, or forward and backward", spec.TARGET_KINDS),
        "grad": _choice("the grad mode of the service", spec.GRADS),
        "autocast": _choice("the dtype of autocast around the call", spec.AUTOCAST_DTYPES),
        "device": _text("auto, cpu, cuda or cuda:N", spec.DEVICE.pattern),
        "tracing": _choice("whether services of the entry trace", spec.TRACING),
        "march": {
            "description": "levels of x86-64 that code for the CPU is built for",
            "anyOf": [
                _choice("one", tuple(march.LEVELS)),
                _choices("an entry for each", tuple(march.LEVELS)),
            ],
        },
        "env": {
            "type": "object",
            "description": "variables of the service",
            "propertyNames": _variable(),
            "additionalProperties": {"type": "string"},
        },
        "pass_env": {**_texts("variables that the target's processes inherit"), "items": _variable()},
        "cwd": _text("working directory, relative to the spec", ".*"),
        "paths": _texts("more folders to import from, relative to the spec"),
        "tolerance": {
            **_table({name: {"type": "number", "minimum": 0, "maximum": 1e6} for name in ("rtol", "atol")}),
            "description": "largest difference from eager: atol + rtol * the largest value",
        },
        "timeout": {
            "type": "number",
            "minimum": 1,
            "maximum": spec.MAX_SECONDS,
            "description": "seconds that one step may take",
        },
        "runs": _whole("calls of which the steady time is the median", 1, spec.MAX_RUNS),
        "seed": _whole("of weights and inputs", 0, 2**63 - 1),
    }


def _argument() -> Schema:
    number = {"type": "number"}
    tensor = {
        **_table(
            {
                "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
                "dtype": {"enum": ["", *inputs.TENSOR_DTYPES]},
                "low": number,
                "high": number,
                "fill": {"enum": list(inputs.FILLS)},
                "dynamic": {"type": "array", "items": {"type": "integer", "minimum": 0}},
            }
        ),
        "required": ["shape"],
        "if": {"properties": {"dtype": {"enum": list(inputs.INTEGER_DTYPES)}}, "required": ["dtype"]},
        "then": {
            "anyOf": [
                {"required": ["high"]},
                {
                    "required": ["fill"],
                    "properties": {"fill": {"enum": [fill for fill in inputs.FILLS if fill != "random"]}},
                },
            ]
        },
    }
    items = {"type": "array", "items": {"$ref": "#/definitions/argument"}}
    plain = {"type": ["boolean", "number", "string"]}
    return {"anyOf": [tensor, items, plain]}


def _input_set() -> Schema:
    arguments = {
        "type": "object",
        "minProperties": 1,
        "properties": {
            "*": {
                "type": "array",
                "items": {"$ref": "#/definitions/argument"},
                "description": "positional arguments",
            },
            "shape": {"type": "object"},
        },
        "additionalProperties": {"$ref": "#/definitions/argument"},
    }
    return {"anyOf": [_text("module:function", toml_table.CALL.pattern), arguments]}


def _variable() -> Schema:
    refused = "|".join(map(re.escape, spec.OWN_VARIABLES))
    return {"pattern": f"^(?!CACHESVC_)(?!(?:{refused})$)(?:{spec.VARIABLE.pattern})$"}


def _table(properties: Schema) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _plain_table(description: str) -> Schema:
    return {"type": "object", "description": description}


def _text(description: str, pattern: str) -> Schema:
    return {"type": "string", "pattern": _whole_text(pattern), "description": description}


def _whole_text(pattern: str) -> str:
    return f"^(?:{pattern})$"


def _texts(description: str) -> Schema:
    return {"type": "array", "items": {"type": "string"}, "description": description}


def _choice(description: str, allowed: Sequence[str]) -> Schema:
    return {"enum": list(allowed), "description": description}


def _choices(description: str, allowed: Sequence[str]) -> Schema:
    return {
        "type": "array",
        "items": {"enum": list(allowed)},
        "minItems": 1,
        "uniqueItems": True,
        "description": description,
    }


def _whole(description: str, low: int, high: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high, "description": description}
