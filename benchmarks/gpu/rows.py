"""List the rows of the matrix by priority: what is warmed, restored and compared.

Full depth for the three anchors (rows 1, 4 and 15), at most 8 layers elsewhere. ``REDUCED`` is the same
matrix small, in float32, for machines without a GPU: what needs one is left out there.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SOURCES = ("workloads.py", "matrix_models.py", "user_kernels.py", "user_operators.py")
Values = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """Describes one row.

    ``work``: a function of `workloads`, called with ``args``, or with ``small`` beside them without a GPU.
    ``options``: of ``torch.compile``. ``calls``: how often every input set is called. ``anchor``: whether the
    row is measured against PyTorch's own means by default. ``gpus``: how many GPUs it needs. ``ranks``:
    processes of one job, by torchrun. ``needs``: a library that the folder MATRIX_MODELS may hold;
    transformers would import it in the other rows, too. ``measured_env``: variables of the restored processes
    alone. ``minutes``: a guess, by which the longest rows are prepared first."""

    id: str
    title: str
    work: str
    args: Values
    small: Values
    options: Values = field(default_factory=dict)
    dtype: str = "bfloat16"
    calls: int = 1
    device: str = ""
    anchor: bool = False
    gpus: int = 0
    ranks: int = 0
    needs: bool = False
    measured_env: dict[str, str] = field(default_factory=dict)
    minutes: float = 1.0

    @property
    def name(self) -> str:
        """Return the name of the row's entry: each row restores its own entry and nothing else."""
        return f"matrix/row-{self.id}"

    @property
    def number(self) -> int:
        return int(self.id.rstrip("abcdefgh"))

    def reduced(self) -> Row:
        """Return the row in a small form, for a machine without a GPU."""
        return replace(self, args=self.args | self.small, dtype="float32")

    def json(self) -> str:
        return json.dumps(asdict(self))

    def spec(
        self, description: Path, keep: Path, service: Path, timeout: float, tracing: str = "always"
    ) -> str:
        """Return the warm spec (TOML) with a script target, so that one program serves all rows and its
        processes keep their outputs in ``keep``. ``service``: the working directory of the restoring
        process."""
        lines = [f'name = "{self.name}"', "[[target]]", f'id = "row-{self.id}"', f"timeout = {timeout:.0f}"]
        lines.append(f'tracing = "{tracing}"')
        lines.append(f"cwd = {json.dumps(str(service))}")
        lines += [f"script = {json.dumps(str(HERE / 'call.py'))}", f"args = {json.dumps([str(description)])}"]
        lines += [f"files = {json.dumps([str(HERE / name) for name in SOURCES] + [str(description)])}"]
        if self.ranks:
            lines.append(f"nproc = {self.ranks}")
        lines += [f"paths = {json.dumps([str(HERE)])}", f"env = {{MATRIX_KEEP = {json.dumps(str(keep))}}}"]
        return "\n".join(lines) + "\n"


def _mode(mode: str, **others: Any) -> Values:
    return {"mode": mode} | others


def _text(model: str, *shapes: tuple[int, int], **arguments: Any) -> Values:
    return {"model": model, "shapes": [list(shape) for shape in shapes], **arguments}


TINY: Values = {"layers": 1, "width": 64, "heads": 4}
TINY_TEXT: Values = TINY | {"vocabulary": 1024, "inner": 128}
TINY_LLAMA = _text("llama", (1, 16), **TINY_TEXT)
LLAMA_1B: Values = {"width": 2048, "heads": 32, "inner": 8192, "vocabulary": 128256}
LLAMA_7B: Values = {"width": 4096, "heads": 32, "inner": 11008}
TINYLLAMA: Values = {"width": 2048, "heads": 32, "inner": 5632}
NO_GRAPHS = "max-autotune-no-cudagraphs"

ROWS = (
    Row(
        "1",
        "Llama 22 layers h2048, default",
        "text",
        _text("llama", (1, 128), layers=22, **TINYLLAMA),
        TINY_LLAMA,
        anchor=True,
    ),
    Row(
        "2",
        "Llama 8 layers h2048, reduce-overhead",
        "text",
        _text("llama", (1, 128), layers=8, **TINYLLAMA),
        TINY_LLAMA,
        _mode("reduce-overhead"),
        calls=3,
    ),
    Row(
        "3",
        "Qwen3 4 layers h1024, max-autotune",
        "text",
        _text("qwen3", (1, 128), layers=4, width=1024),
        TINY_TEXT | {"shapes": [[1, 16]]},
        _mode("max-autotune"),
        calls=3,
        minutes=3,
    ),
    Row(
        "4",
        f"Qwen3 28 layers h1024, {NO_GRAPHS}",
        "text",
        _text("qwen3", (1, 128), layers=28, width=1024),
        TINY_TEXT | {"shapes": [[1, 16]]},
        _mode(NO_GRAPHS),
        anchor=True,
        minutes=6,
    ),
    Row(
        "5",
        "Llama 4 layers, dynamic=True, three lengths",
        "text",
        _text("llama", (2, 96), (2, 160), (2, 224), layers=4, width=1024),
        TINY_TEXT | {"shapes": [[2, 12], [2, 20]]},
        {"dynamic": True},
    ),
    Row(
        "6",
        "Llama 4 layers, automatic dynamic after a second shape",
        "text",
        _text("llama", (2, 64), (2, 128), (2, 200), layers=4, width=1024),
        TINY_TEXT | {"shapes": [[2, 12], [2, 20], [2, 24]]},
    ),
    Row(
        "7",
        "BERT 4 layers: batches 1, 4, 8 x lengths 128, 512 as one bundle",
        "text",
        _text("bert", *((b, n) for b in (1, 4, 8) for n in (128, 512)), layers=4, width=768),
        TINY | {"shapes": [[1, 12], [2, 20]]},
        {"dynamic": False},
        minutes=2,
    ),
    Row(
        "8",
        "Llama 4 layers, fullgraph",
        "text",
        _text("llama", (2, 128), layers=4, width=1024),
        TINY_LLAMA,
        {"fullgraph": True},
    ),
    Row(
        "9",
        "BERT with graph breaks",
        "graph_breaks",
        {"batch": 2, "length": 128, "layers": 2, "width": 768},
        TINY | {"length": 16},
    ),
    Row(
        "10",
        "Llama 8 layers, each layer compiled",
        "regional",
        {"batch": 2, "length": 128, "layers": 8, "width": 2048, "heads": 32},
        TINY_TEXT | {"length": 16, "layers": 2},
    ),
    Row(
        "11",
        "BERT 4 layers, training: forward, backward, AdamW",
        "training",
        {"model": "bert", "batch": 2, "length": 128, "layers": 4, "width": 768},
        TINY | {"length": 16},
        minutes=2,
    ),
    Row(
        "12",
        "BERT 4 layers, autocast to bfloat16",
        "autocast",
        {"batch": 2, "length": 128, "layers": 4, "width": 768},
        TINY | {"length": 16},
        dtype="float32",
    ),
    Row(
        "13",
        "Llama 4 layers, training with gradient checkpointing",
        "training",
        {"model": "llama", "batch": 2, "length": 128, "layers": 4, "width": 1024, "checkpoints": True},
        TINY_TEXT | {"length": 16},
        minutes=2,
    ),
    Row(
        "14",
        "Llama 4 layers, int8 weights (torchao)",
        "int8",
        {"batch": 2, "length": 128, "layers": 4, "width": 1024},
        TINY_TEXT | {"length": 16},
        needs=True,
    ),
    Row(
        "15",
        "ResNet-101, default",
        "images",
        {"model": "resnet", "batch": 4, "depths": [3, 4, 23, 3]},
        {"depths": [1, 1], "width": 8, "batch": 1},
        anchor=True,
    ),
    Row(
        "16",
        "ViT-Large, 8 layers",
        "images",
        {"model": "vit", "batch": 4, "layers": 8, "width": 1024},
        TINY | {"batch": 1},
    ),
    Row(
        "16b",
        "ViT-Large, 24 layers",
        "images",
        {"model": "vit", "batch": 4, "layers": 24, "width": 1024},
        TINY | {"batch": 1},
    ),
    Row(
        "17",
        "BERT-base, 8 layers",
        "text",
        _text("bert", (8, 128), layers=8, width=768),
        TINY | {"shapes": [[1, 16]]},
    ),
    Row(
        "18",
        "Llama 1B, 8 layers",
        "text",
        _text("llama", (1, 128), layers=8, **LLAMA_1B),
        TINY_LLAMA,
    ),
    Row(
        "18b",
        "Llama 7B, 8 layers",
        "text",
        _text("llama", (1, 128), layers=8, **LLAMA_7B),
        TINY_LLAMA,
    ),
    Row(
        "19",
        "DiT-XL, 8 layers",
        "diffusion",
        {"model": "dit", "batch": 2, "layers": 8},
        {"layers": 1, "heads": 2, "head_dim": 16},
        needs=True,
    ),
    Row(
        "19b",
        "a UNet with cross attention",
        "diffusion",
        {"model": "unet", "batch": 2, "channels": [320, 640], "width": 768},
        {"channels": [32, 64], "width": 32, "batch": 1},
        needs=True,
    ),
    Row(
        "20",
        "user Triton kernels, eager and inside, with triton.autotune",
        "user_triton",
        {"size": 100_000},
        {},
        dtype="float32",
        gpus=1,
    ),
    Row(
        "21",
        "torch.library custom ops, with gradient",
        "custom_ops",
        {"batch": 64, "width": 1024},
        {"width": 64},
        dtype="float32",
    ),
    Row(
        "22",
        "FlexAttention: sliding window and score",
        "flex",
        {"batch": 2, "heads": 8, "length": 1024, "head_dim": 64},
        {"heads": 2, "length": 256, "head_dim": 32},
    ),
    Row(
        "25",
        "T5 encoder, 8 layers",
        "text",
        _text("t5", (4, 128), layers=8, width=512),
        TINY | {"shapes": [[1, 16]]},
    ),
    Row(
        "26",
        "Mixtral 2 layers, 8 experts",
        "text",
        _text("mixtral", (1, 128), layers=2, width=1024),
        TINY_TEXT | {"shapes": [[1, 16]], "experts": 4},
    ),
    Row(
        "27",
        "a graph attention network (PyTorch Geometric)",
        "network",
        {"nodes": 10_000, "edges": 100_000, "layers": 3, "width": 256},
        {"nodes": 50, "edges": 200, "layers": 2, "width": 32},
        needs=True,
    ),
    *(
        Row(
            ident,
            f"{ranks} ranks of one job, a GPU each: training step and a reduction inside of a graph",
            "ranks",
            {"batch": 2, "length": 128, "layers": 4, "width": 1024},
            TINY_TEXT | {"length": 16},
            gpus=ranks,
            ranks=ranks,
            minutes=2,
        )
        for ident, ranks in (("23", 2), ("23b", 4))
    ),
    Row(
        "24",
        "the same service on cuda:0 and cuda:1, one process",
        "devices",
        _text("llama", (2, 128), layers=4, width=1024, indices=[0, 1]),
        TINY_LLAMA,
        gpus=2,
    ),
    Row(
        "24b",
        "warmed on cuda:0, restored where CUDA_VISIBLE_DEVICES=1",
        "text",
        _text("llama", (2, 128), layers=4, width=1024),
        TINY_LLAMA,
        gpus=2,
        measured_env={"CUDA_VISIBLE_DEVICES": "1"},
    ),
)


def choose_rows(text: str, gpus: int) -> list[Row]:
    """Return the rows of ``1,4,7-9`` (all if empty) that a machine with so many GPUs can run; without a GPU,
    reduced.

    An id such as 24 takes 24b with it. Raise ``ValueError`` for a number that is no row."""
    selection: set[str] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers = range(int(first), int(last) + 1) if last else ()
        matches = {row.id for row in ROWS if part in (row.id, str(row.number)) or row.number in numbers}
        if not matches:
            raise ValueError(f"--rows {part}: no such row")
        selection |= matches
    rows = [row for row in ROWS if row.id in selection or not text]
    if gpus:
        return [row for row in rows if row.gpus <= gpus]
    return [row.reduced() for row in rows if not row.gpus or row.ranks == 2]


def family(gpus: int) -> str:
    """Return the warm spec (TOML) of one model's variants, whose packs `sharing` compares: shapes, modes,
    edits."""
    base: Values = (
        {"layers": 4, "width": 1024} if gpus else {"layers": 1, "width": 64, "heads": 4, "inner": 128}
    )
    length = 128 if gpus else 16
    edits: list[tuple[str, Values, tuple[int, int], str]] = [
        ("a-base", {}, (2, length), "default"),
        ("b-longer", {}, (2, 2 * length), "default"),
        ("c-batch", {}, (4, length), "default"),
        ("d-one-layer-more", {"layers": base["layers"] + 1}, (2, length), "default"),
        ("e-activation", {"activation": "gelu"}, (2, length), "default"),
        ("f-mode", {}, (2, length), NO_GRAPHS),
    ]
    lines = ['name = "matrix/family"', "[defaults]", f"paths = {json.dumps([str(HERE)])}", "runs = 1"]
    lines += [f'dtypes = ["{"bfloat16" if gpus else "float32"}"]']
    for ident, edit, shape, mode in edits:
        arguments = ", ".join(f"{name} = {json.dumps(value)}" for name, value in (base | edit).items())
        lines += [
            "[[target]]",
            f'id = "{ident}"',
            'factory = "matrix_models:llama"',
            f"args = {{{arguments}}}",
        ]
        lines += [f'modes = ["{mode}"]', "[target.inputs.tokens]"]
        lines += [f'input_ids = {{shape = {list(shape)}, dtype = "int64", high = 1000}}']
    return "\n".join(lines) + "\n"
