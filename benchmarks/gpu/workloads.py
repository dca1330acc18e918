"""Define the work of the rows: ``prepare(row)`` builds a row's model and inputs and returns its ``Run``.

A ``Run`` takes what compiles (``torch.compile`` with the row's options, or ``identity`` for eager), makes
all the row's calls and answers their outputs. It leaves the weights as they were, so that it may be run
again. The same code runs under ``cachesvc warm`` (`call.py`) and in measured processes (`process.py`).
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import matrix_models
import torch
from torch import Tensor, nn

Wrap = Callable[..., Any]
Run = Callable[[Wrap], list[Tensor]]
Parts = tuple[nn.Module, list[dict[str, Any]]]
Row = dict[str, Any]
"""A row as JSON (`rows.Row`): ``work``, ``args``, ``options``, ``dtype``, ``calls``, ``device``."""


def prepare(row: Row) -> Run:
    """Build the row's work, seeded, on the row's device and with its dtype. Compile nothing."""
    torch.manual_seed(0)
    with torch.device(device(row)):
        run: Run = globals()[row["work"]](row, **row["args"])
    return run


def parts(row: Row) -> Parts:
    """Build the model and the input sets of a row of text or images, on the current device."""
    of_work: Any = {"text": _of_text, "images": _of_images}[row["work"]]
    torch.manual_seed(0)
    return of_work(row, **row["args"])


def compiler(row: Row) -> Wrap:
    """Return ``torch.compile`` with the row's options."""
    return functools.partial(torch.compile, **row["options"])


def identity(function: Any) -> Any:
    """Return the function itself: eager."""
    return function


def device(row: Row) -> str:
    return str(row["device"] or ("cuda" if torch.cuda.is_available() else "cpu"))


def end() -> None:
    """End the job; called last, so that ranks leave their job together."""
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def synchronise() -> None:
    """Wait for the devices that this process uses."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


MODES_WITH_CUDA_GRAPHS = ("reduce-overhead", "max-autotune")
"""Modes whose programs say where a step begins, as PyTorch asks of them."""

# Parts ----------------------------------------------------------------------------------------


def _dtype(row: Row) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, row["dtype"])
    return dtype


def _model(row: Row, name: str, arguments: dict[str, Any]) -> nn.Module:
    model: nn.Module = getattr(matrix_models, name)(**arguments)
    return model.to(_dtype(row))


def _tokens(batch: int, length: int) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(0, 1000, (batch, length))}


def _images(row: Row, batch: int) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(batch, 3, 224, 224, dtype=_dtype(row))}


def _first(output: Any) -> Tensor:
    """Return the first tensor of a model's output."""
    tensor: Tensor = output if isinstance(output, Tensor) else output[0]
    return tensor


def _calls(row: Row, call: Callable[..., Any], sets: Iterable[dict[str, Any]]) -> list[Tensor]:
    """Yield every input set in order, all of them ``calls`` times: CUDA graphs are recorded at the second
    call."""
    outputs = []
    for _, arguments in itertools.product(range(row["calls"]), sets):
        if torch.cuda.is_available() and row["options"].get("mode") in MODES_WITH_CUDA_GRAPHS:
            torch.compiler.cudagraph_mark_step_begin()
        outputs.append(_first(call(**arguments)).detach().clone())
    return outputs


def _inference(row: Row, model: nn.Module, sets: list[dict[str, Any]]) -> Run:
    def run(wrap: Wrap) -> list[Tensor]:
        with torch.no_grad():
            return _calls(row, wrap(model), sets)

    return run


@contextlib.contextmanager
def _weights_kept(model: nn.Module) -> Iterator[None]:
    before = copy.deepcopy(model.state_dict())
    try:
        yield
    finally:
        model.load_state_dict(before)
        model.zero_grad(set_to_none=True)


# Rows -----------------------------------------------------------------------------------------


def text(row: Row, **arguments: Any) -> Run:
    """Run a model of tokens on each (batch, length)."""
    return _inference(row, *_of_text(row, **arguments))


def _of_text(row: Row, model: str, shapes: list[list[int]], **arguments: Any) -> Parts:
    sets = [_tokens(*shape) for shape in shapes]
    return _model(row, model, arguments), sets


def images(row: Row, **arguments: Any) -> Run:
    """Run a model of images."""
    return _inference(row, *_of_images(row, **arguments))


def _of_images(row: Row, model: str, batch: int, **arguments: Any) -> Parts:
    return _model(row, model, arguments), [_images(row, batch)]


def network(row: Row, nodes: int, edges: int, layers: int, width: int, features: int = 64) -> Run:
    """Run a network over a graph of random edges."""
    model = _model(row, "gat", {"layers": layers, "width": width, "features": features})
    inputs = {
        "x": torch.randn(nodes, features, dtype=_dtype(row)),
        "edge_index": torch.randint(0, nodes, (2, edges)),
    }
    return _inference(row, model, [inputs])


def diffusion(row: Row, model: str, batch: int, **arguments: Any) -> Run:
    """Run one denoising step of a DiT (class labels) or a UNet (text states)."""
    built = _model(row, model, arguments)
    inputs: dict[str, Any] = {"hidden_states" if model == "dit" else "sample": None}
    inputs = dict.fromkeys(inputs, torch.randn(batch, 4, 32, 32, dtype=_dtype(row)))
    inputs["timestep"] = torch.full((batch,), 500)
    if model == "dit":
        inputs["class_labels"] = torch.arange(batch)
    else:
        width = arguments.get("width", 768)
        inputs["encoder_hidden_states"] = torch.randn(batch, 77, width, dtype=_dtype(row))
    return _inference(row, built, [inputs | {"return_dict": False}])


def graph_breaks(row: Row, batch: int, length: int, **arguments: Any) -> Run:
    """Run an encoder that looks at its values between two halves, which Dynamo cannot trace through."""
    encoder = _model(row, "bert", arguments)

    class Looking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder

        def forward(self, input_ids: Tensor) -> Tensor:
            hidden: Tensor = self.encoder(input_ids)[0]
            if hidden.abs().mean().item() > 1e-4:
                hidden = torch.nn.functional.gelu(hidden) * 2
            torch._dynamo.graph_break()
            return self.encoder(inputs_embeds=hidden)[0].softmax(-1)

    return _inference(row, Looking(), [_tokens(batch, length)])


def regional(row: Row, batch: int, length: int, **arguments: Any) -> Run:
    """Compile each decoder layer and run the rest eagerly: one compilation serves all layers."""
    decoder = _model(row, "llama", arguments)
    layers: Any = decoder.get_submodule("model.layers")
    tokens = _tokens(batch, length)

    def run(wrap: Wrap) -> list[Tensor]:
        plain = list(layers)
        for index, layer in enumerate(plain):
            layers[index] = wrap(layer)
        try:
            with torch.no_grad():
                return _calls(row, decoder, [tokens])
        finally:
            for index, layer in enumerate(plain):
                layers[index] = layer

    return run


def training(
    row: Row, model: str, batch: int, length: int, steps: int = 2, checkpoints: bool = False, **arguments: Any
) -> Run:
    """Run steps of forward, backward and AdamW, whose step is compiled too."""
    trained = _model(row, model, arguments).train()
    if checkpoints:
        trained.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
    tokens = _tokens(batch, length)

    def run(wrap: Wrap) -> list[Tensor]:
        with _weights_kept(trained):
            optimizer = torch.optim.AdamW(trained.parameters(), 1e-2, eps=1e-2)
            call, step = wrap(trained), wrap(optimizer.step)
            losses = []
            for _ in range(steps):
                loss = _first(call(**tokens)).float().square().mean()
                loss.backward()
                losses.append(loss.detach().clone())
                step()
                optimizer.zero_grad(set_to_none=True)
            weights = [
                weight.detach().clone() for weight in itertools.islice(trained.parameters(), 0, None, 7)
            ]
            return [*losses, *weights]

    return run


def _cuda() -> bool:
    return torch.cuda.is_available()


def autocast(row: Row, batch: int, length: int, **arguments: Any) -> Run:
    """Run weights of float32 under autocast to bfloat16."""
    encoder = _model(row, "bert", arguments)
    kind = device(row).split(":")[0]

    def run(wrap: Wrap) -> list[Tensor]:
        with torch.no_grad(), torch.autocast(kind, torch.bfloat16):
            return _calls(row, wrap(encoder), [_tokens_of_autocast])

    _tokens_of_autocast = _tokens(batch, length)
    return run


def int8(row: Row, batch: int, length: int, **arguments: Any) -> Run:
    """Run weights of int8 (torchao, weight only)."""
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    decoder = _model(row, "llama", arguments)
    quantize_(decoder, Int8WeightOnlyConfig())
    return _inference(row, decoder, [_tokens(batch, length)])


def user_triton(row: Row, size: int) -> Run:
    """Run a user's kernels: launched eagerly, plain and under ``triton.autotune``, and inside of a graph."""
    import user_kernels

    left, right = torch.randn(size), torch.randn(size)

    def run(wrap: Wrap) -> list[Tensor]:
        with torch.no_grad():
            eager = [user_kernels.scaled_sum(left, right), user_kernels.tuned_sum(left, right)]
            inside = wrap(lambda one, other: user_kernels.tuned_sum(one.sin(), other).relu())
            return [*eager, *_calls(row, inside, [{"one": left, "other": right}])]

    return run


def custom_ops(row: Row, batch: int, width: int) -> Run:
    """Run ``torch.library.custom_op`` with a fake and a gradient, inside of a compiled training function; on
    a GPU a ``triton_op`` beside it."""
    import user_operators

    inputs = torch.randn(batch, width, dtype=_dtype(row), requires_grad=True)
    weight = torch.randn(width, width, dtype=_dtype(row)) / width**0.5

    def function(one: Tensor, other: Tensor) -> Tensor:
        hidden = user_operators.clipped_square(one @ other).sin()
        if hidden.is_cuda:
            hidden = user_operators.doubled(hidden)
        return hidden.softmax(-1)

    def run(wrap: Wrap) -> list[Tensor]:
        output = wrap(function)(inputs, weight)
        (gradient,) = torch.autograd.grad(output.square().sum(), inputs)
        return [output.detach(), gradient]

    return run


def flex(row: Row, batch: int, heads: int, length: int, head_dim: int) -> Run:
    """Run FlexAttention with a sliding window and a score of its own."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def window(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (query - key <= 256)

    def slope(score: Tensor, _batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return score + (key - query) * 0.01 * (head + 1)

    shape = (batch, heads, length, head_dim)
    query, key, value = (torch.randn(shape, dtype=_dtype(row)) for _ in range(3))
    mask = create_block_mask(window, None, None, length, length, device=device(row))
    attend = functools.partial(flex_attention, score_mod=slope, block_mask=mask)

    def run(wrap: Wrap) -> list[Tensor]:
        with torch.no_grad():
            return _calls(row, wrap(attend), [{"query": query, "key": key, "value": value}])

    return run


def devices(row: Row, indices: list[int], **arguments: Any) -> Run:
    """Run the same service on each of several devices, one after the other, in one process."""
    runs = []
    for index in indices:
        there = f"cuda:{index}" if torch.cuda.is_available() else "cpu"
        torch.manual_seed(0)
        with torch.device(there):
            runs.append(text(row | {"device": there}, **arguments))

    def run(wrap: Wrap) -> list[Tensor]:
        outputs = [output for one in runs for output in one(wrap)]
        for index in indices if _cuda() else ():
            torch.cuda.synchronize(index)
        return outputs

    return run


def ranks(row: Row, batch: int, length: int, **arguments: Any) -> Run:
    """Run one rank of a job: a training step whose gradients are reduced, as data parallelism does, and a
    decoder layer's worth of tensor parallelism with the reduction inside of the graph.

    Each rank has a device, and a batch, of its own."""
    import torch.distributed as dist
    import torch.distributed._functional_collectives as collectives

    rank = int(os.environ.get("LOCAL_RANK", "0"))
    there = f"cuda:{rank}" if _cuda() else "cpu"
    if _cuda():
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if _cuda() else "gloo")
    with torch.device(there):
        torch.manual_seed(0)
        trained = _model(row, "llama", arguments).train()
        parts = torch.randn(64, 64, dtype=_dtype(row)) / 8
        torch.manual_seed(1 + rank)
        tokens = _tokens(batch, length)

    def parallel(hidden: Tensor) -> Tensor:
        partial = (hidden @ parts).relu() @ parts.T
        reduced: Tensor = collectives.all_reduce(partial, "sum", dist.group.WORLD)
        return reduced.sin() + hidden

    def run(wrap: Wrap) -> list[Tensor]:
        with _weights_kept(trained):
            loss = _first(wrap(trained)(**tokens)).float().square().mean()
            loss.backward()
            gradients = [item.grad for item in trained.parameters() if item.grad is not None]
            for gradient in gradients:
                dist.all_reduce(gradient)
            tensors = [loss.detach().clone(), *(item.clone() for item in gradients[::5])]
        with torch.no_grad():
            return [*tensors, wrap(parallel)(parts[:8] * (rank + 1))]

    return run
