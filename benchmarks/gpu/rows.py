"""The rows of the GPU proof: what is warmed, and how the measured process calls it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TWO_LENGTHS = ("tokens_128", "tokens_200")
MAX_AUTOTUNE = "max-autotune-no-cudagraphs"


@dataclass(frozen=True)
class Row:
    """``inputs``: functions of `subjects`, called in this order. ``script``: arguments of `eager_triton`,
    for rows without a module."""

    number: int
    title: str
    factory: str = ""
    args: dict[str, Any] = field(default_factory=dict)
    inputs: tuple[str, ...] = ("tokens_128",)
    dtype: str = "bfloat16"
    mode: str = "default"
    dynamic: bool | None = None
    training: bool = False
    script: str = ""

    @property
    def id(self) -> str:
        return f"row{self.number}"

    @property
    def name(self) -> str:
        """What it is published under: each row restores its own entry and nothing else."""
        return f"gpu/{self.id}"

    def spec(self) -> str:
        """The warm spec (TOML) of this row alone."""
        lines = [f'name = "{self.name}"', "[[target]]", f'id = "{self.id}"', "timeout = 400"]
        if self.script:
            path = json.dumps(str(HERE / "eager_triton.py"))
            lines += [f"script = {path}", f"args = {json.dumps([self.script])}"]
        else:
            lines += [
                f'factory = "subjects:{self.factory}"',
                "args = {" + ", ".join(f"{key} = {value}" for key, value in self.args.items()) + "}",
                f"paths = {json.dumps([str(HERE)])}",
                f"dtypes = {json.dumps([self.dtype])}",
                f"modes = {json.dumps([self.mode])}",
                f'kind = "{"training" if self.training else "inference"}"',
            ]
            if self.dynamic is not None:
                lines.append(f"dynamic = {str(self.dynamic).lower()}")
        if not self.script:
            lines += ["[target.inputs]", *(f'{name} = "subjects:{name}"' for name in self.inputs)]
        return "\n".join(lines) + "\n"


ROWS = (
    Row(1, "Llama 4 layers h1024, default, bf16", "llama", {"layers": 4}),
    Row(2, "the same, dynamic=True, two lengths", "llama", {"layers": 4}, TWO_LENGTHS, dynamic=True),
    Row(3, "ResNet of 12 blocks, default, bf16", "resnet", {"depth": 3}, ("images_bf16",)),
    Row(4, "a user's Triton kernel, launched eagerly", script="plain"),
    Row(5, "the same under triton.autotune", script="autotune"),
    Row(6, "BERT 4 layers h512, training step, bf16", "bert", {"layers": 4}, training=True),
    Row(7, "Llama 2 layers, max-autotune-no-cudagraphs", "llama", {"layers": 2}, mode=MAX_AUTOTUNE),
)

REDUCED = (
    Row(1, "Llama 1 layer h64, default", "llama", {"layers": 1, "width": 64}, dtype="float32"),
    Row(
        2,
        "the same, dynamic=True, two lengths",
        "llama",
        {"layers": 1, "width": 64},
        TWO_LENGTHS,
        "float32",
        dynamic=True,
    ),
    Row(
        6,
        "BERT 1 layer h64, training step",
        "bert",
        {"layers": 1, "width": 64},
        dtype="float32",
        training=True,
    ),
)
"""What the same script runs without a GPU."""
