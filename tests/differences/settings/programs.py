"""Differences of the program and of its inputs, by name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from . import probes

Change = Callable[[], contextlib.AbstractContextManager[Any]]


def having(**values: Any) -> Change:
    """Return a context in which the probes have other values."""

    @contextlib.contextmanager
    def change() -> Iterator[None]:
        vars(probes.HERE).update(values)
        try:
            yield
        finally:
            probes.reset()

    return change


def model(function: Callable[[Any], Any]) -> Change:
    return having(model=lambda one: function(one) or one)


class Subclass(torch.Tensor):
    """Is a tensor of another class, with PyTorch's own behaviour."""


class Opposite(torch.Tensor):
    """Is a tensor whose sine is its cosine."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.sin, torch.sin):
            func = torch.Tensor.cos
        return super().__torch_function__(func, types, args, kwargs or {})


class Doubled(nn.Module):
    def forward(self, weight: Any) -> Any:
        return weight * 2


class HalfGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        return grad / 2


def _tie(one: Any) -> None:
    one.offset = one.first.bias.detach()


def _replace_forward(one: Any) -> None:
    forward = one.forward
    one.forward = lambda x: forward(x) + 1


def _functional_operator(function: Callable[[], Any]) -> Change:
    @contextlib.contextmanager
    def change() -> Iterator[None]:
        function()
        yield

    return change


def _other_backward() -> None:
    probes.shift.register_autograd(lambda ctx, grad: grad * 5)


def _other_body() -> None:
    probes.shift.register_kernel("cpu")(lambda x: x + 3)


def _other_fake() -> None:
    probes.shift.register_fake(lambda x: torch.empty_like(x, memory_format=torch.contiguous_format))


PROGRAMS: dict[str, Change] = {
    "global of the module": having(scale=2.5),
    "closure: int": having(number=4),
    "closure: int 1": having(number=1),
    "closure: int 0": having(number=0),
    "closure: bool": having(number=True),
    "closure: float for int": having(number=3.0),
    "closure: 0-dim tensor for int": having(number=torch.tensor(3)),
    "closure: 0-dim float64 tensor": having(scalar=torch.tensor(0.5, dtype=torch.float64)),
    "closure: 1-element tensor": having(scalar=torch.tensor([0.5])),
    "closure: float": having(scalar=0.75),
    "closure: int for float": having(scalar=1),
    "closure: -0.0": having(scalar=-0.0),
    "closure: nan": having(scalar=float("nan")),
    "closure: inf": having(scalar=float("inf")),
    "closure: complex": having(scalar=0.5 + 1j),
    "default argument, and what an operator reads": having(default=(3.0,)),
    "operator: backward": _functional_operator(_other_backward),
    "operator: body": _functional_operator(_other_body),
    "operator: fake": _functional_operator(_other_fake),
    "train()": model(lambda one: one.train()),
    "attribute": model(lambda one: setattr(one, "slope", 0.5)),
    "attribute: int": model(lambda one: setattr(one, "slope", 1)),
    "attribute: tensor": model(lambda one: setattr(one, "slope", torch.tensor(0.25))),
    "attribute: float64 tensor": model(
        lambda one: setattr(one, "slope", torch.tensor([0.25], dtype=torch.float64))
    ),
    "buffer: float64": model(lambda one: setattr(one, "offset", one.offset.double())),
    "buffer: values": model(lambda one: setattr(one, "offset", one.offset * 3)),
    "buffer: 1 element": model(lambda one: setattr(one, "offset", one.offset[:1].clone())),
    "buffer: stride 0": model(lambda one: setattr(one, "offset", one.offset[:1].expand(16))),
    "buffer: requires grad": model(lambda one: one.offset.requires_grad_() and None),
    "buffer: is the bias": model(_tie),
    "parameter: a plain tensor": model(
        lambda one: (delattr(one, "offset"), setattr(one, "offset", torch.ones(16)))[1]
    ),
    "parameter: frozen": model(lambda one: one.first.weight.requires_grad_(False) and None),
    "parameters: all frozen": model(lambda one: one.requires_grad_(False)),
    "parameter: transposed memory": model(
        lambda one: setattr(one.first, "weight", nn.Parameter(one.first.weight.detach().t().contiguous().t()))
    ),
    "parameter: channels of a view": model(
        lambda one: setattr(one.first, "weight", nn.Parameter(torch.ones(16, 32)[:, ::2]))
    ),
    "parameter: bfloat16": model(lambda one: one.bfloat16() and None),
    "parameter: no bias": model(lambda one: setattr(one.first, "bias", None)),
    "parameter: subclass": model(
        lambda one: setattr(
            one.first, "weight", nn.Parameter(one.first.weight.detach().as_subclass(Subclass))
        )
    ),
    "parametrization": model(
        lambda one: parametrize.register_parametrization(one.first, "weight", Doubled()) and None
    ),
    "forward hook": model(lambda one: one.first.register_forward_hook(lambda m, a, out: out * 2) and None),
    "forward pre-hook": model(
        lambda one: one.first.register_forward_pre_hook(lambda m, args: (args[0] + 1,)) and None
    ),
    "backward hook": model(
        lambda one: (
            one.first.register_full_backward_hook(lambda m, i, o: (i[0] * 3,) if i[0] is not None else None)
            and None
        )
    ),
    "tensor hook": model(lambda one: one.first.weight.register_hook(lambda grad: grad * 3) and None),
    "global forward hook": _functional_operator(
        lambda: nn.modules.module.register_module_forward_hook(lambda m, a, out: out * 2)
    ),
    "instance's forward": model(_replace_forward),
    "class's forward": _functional_operator(
        lambda: setattr(nn.Linear, "forward", lambda self, x: x @ self.weight + self.bias)
    ),
    "patched functional": _functional_operator(
        lambda: setattr(nn.functional, "gelu", lambda x: x * torch.sigmoid(1.702 * x))
    ),
    "patched tensor method": _functional_operator(lambda: setattr(torch.Tensor, "sin", torch.Tensor.cos)),
    "wrapped in a function": having(model=lambda one: lambda x: one(x)),
    "wrapped in Sequential": having(model=lambda one: nn.Sequential(one)),
    "autograd function": having(model=lambda one: lambda x: HalfGradient.apply(one(x))),
    "no_grad inside": having(model=lambda one: torch.no_grad()(lambda x: one(x))),
    "detached output": having(model=lambda one: lambda x: one(x).detach()),
    "checkpoint": having(
        model=lambda one: lambda x: torch.utils.checkpoint.checkpoint(one, x, use_reentrant=False)
    ),
    "fullgraph": having(options={"fullgraph": True}),
    "dynamic=True": having(options={"dynamic": True}),
    "dynamic=False": having(options={"dynamic": False}),
    "mode default": having(options={"mode": "default"}),
    "mode reduce-overhead": having(options={"mode": "reduce-overhead"}),
    "mode max-autotune-no-cudagraphs": having(options={"mode": "max-autotune-no-cudagraphs"}),
    "option epilogue_fusion": having(options={"options": {"epilogue_fusion": False}}),
    "option max_fusion_size": having(options={"options": {"max_fusion_size": 2}}),
    "option fallback_random": having(options={"options": {"fallback_random": True}}),
    "option shape_padding": having(options={"options": {"shape_padding": False}}),
    "option trace.enabled=False": having(options={"options": {"trace.graph_diagram": False}}),
    **{f"rows {rows}": having(rows=rows) for rows in (1, 2, 3, 4, 6, 17, 64, 1000)},
}


def given(function: Callable[[Any], Any]) -> Change:
    return having(inputs=function)


def _misaligned(x: Any) -> Any:
    base = torch.zeros(x.numel() + 1, dtype=x.dtype)
    return base[1:].view(x.shape).copy_(x)


def _hooked(x: Any) -> Any:
    x = x.clone().requires_grad_()
    x.register_hook(lambda grad: grad * 2)
    return x * 1


def _marked(mark: Callable[..., None]) -> Change:
    def function(x: Any) -> Any:
        mark(x, 0)
        return x

    return given(function)


def _last_strided(x: Any) -> Any:
    return x.transpose(-1, -2).contiguous().transpose(-1, -2)


INPUTS: dict[str, Change] = {
    "float64": given(lambda x: x.double()),
    "float16": given(lambda x: x.half()),
    "bfloat16": given(lambda x: x.bfloat16()),
    "int64": given(lambda x: (x * 50).long()),
    "int32": given(lambda x: (x * 50).int()),
    "uint8": given(lambda x: (x * 50).abs().to(torch.uint8)),
    "bool": given(lambda x: x > 0),
    "complex64": given(lambda x: x.to(torch.complex64)),
    "conjugate": given(lambda x: (x * (1 + 1j)).conj()),
    "negative bit": given(lambda x: torch.view_as_complex(torch.stack([x, x], -1)).conj().imag),
    "transposed memory": given(_last_strided),
    "channels last": given(lambda x: x.to(memory_format=torch.channels_last) if x.dim() == 4 else x),
    "every second": given(lambda x: torch.stack([x, x * 0], -1).flatten(-2)[..., ::2]),
    "stride 0": given(lambda x: x[:1].expand(x.shape)),
    "storage offset": given(lambda x: torch.cat([x, x])[x.shape[0] :]),
    "misaligned by one element": given(_misaligned),
    "flipped": given(lambda x: x.flip(-1)),
    "large storage": given(lambda x: torch.cat([x, x, x])[: x.shape[0]]),
    "requires grad": given(lambda x: x.clone().requires_grad_()),
    "not a leaf": given(lambda x: x.clone().requires_grad_() * 1),
    "with a hook": given(_hooked),
    "inference tensor": given(lambda x: torch.inference_mode()(lambda: x.clone())()),
    "parameter": given(lambda x: nn.Parameter(x)),
    "frozen parameter": given(lambda x: nn.Parameter(x, requires_grad=False)),
    "buffer": given(lambda x: nn.Buffer(x)),
    "subclass": given(lambda x: x.clone().as_subclass(Subclass)),
    "subclass with other functions": given(lambda x: x.clone().as_subclass(Opposite)),
    "view": given(lambda x: x.view(-1).view(x.shape)),
    "detached view": given(lambda x: x.detach()),
    "shared memory": given(lambda x: x.clone().share_memory_()),
    "pinned": given(lambda x: x.pin_memory()),
    "meta": given(lambda x: x.to("meta")),
    "sparse": given(lambda x: x.to_sparse()),
    "double the values": given(lambda x: x * 2),
    "nan": given(lambda x: x * float("nan")),
    "inf": given(lambda x: x / 0),
    "denormal": given(lambda x: x * 1e-42),
    "one row": given(lambda x: x[:1].clone()),
    "two rows": given(lambda x: x[:2].clone()),
    "no rows": given(lambda x: x[:0].clone()),
    "more rows": given(lambda x: torch.cat([x, x])),
    "mark_dynamic": _marked(torch._dynamo.mark_dynamic),
    "maybe_mark_dynamic": _marked(torch._dynamo.maybe_mark_dynamic),
    "mark_static": _marked(torch._dynamo.mark_static),
    "mark_unbacked": _marked(torch._dynamo.decorators.mark_unbacked),
    "mark_static_address": given(lambda x: torch._dynamo.mark_static_address(x) or x),
    "attribute on the tensor": given(lambda x: setattr(x, "note", 1) or x),
    "named": given(lambda x: x.rename(*"abcd"[: x.dim()])),
    "dtype of a view": given(lambda x: x.view(torch.int32).view(torch.float32)),
}
