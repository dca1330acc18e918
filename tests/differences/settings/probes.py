"""Programs whose numbers, dtypes, strides or aliases show that code of another setting was reused.

A probe is a function with its inputs. A difference may change the module ``HERE``: its constants, how inputs
are made, the model, the arguments of ``torch.compile``.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional

WIDTH = 16
HERE = types.SimpleNamespace()


def reset() -> None:
    """Set everything that differences change as the builder has it."""
    HERE.scale = 1.5
    HERE.inputs = lambda tensor: tensor
    HERE.model = lambda model: model
    HERE.number = 3
    HERE.scalar = 0.5
    HERE.rows = 5
    HERE.options = {}
    HERE.default = (2.0,)


reset()


@dataclass(frozen=True)
class Probe:
    """Holds a program. ``make`` returns the function to compile and its inputs.

    ``grad``: gradients are computed, whatever the mode of the process is. ``options``: arguments of
    ``torch.compile``. ``random``: eager draws other random numbers than compiled code.
    """

    make: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]
    grad: bool | None = None
    options: dict[str, Any] = field(default_factory=dict)
    random: bool = False


@torch.library.custom_op("differences::shift", mutates_args=())
def shift(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@shift.register_fake
def _fake_shift(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


shift.register_autograd(lambda ctx, grad: grad * HERE.default[0])

_LIBRARY = torch.library.Library("differences_composite", "DEF")
_LIBRARY.define("double(Tensor x) -> Tensor")


def double(x: torch.Tensor) -> torch.Tensor:
    return x * HERE.default[0]


_LIBRARY.impl("double", double, "CompositeImplicitAutograd")


def ramp(*shape: int) -> torch.Tensor:
    count = 1
    for size in shape:
        count *= size
    return torch.arange(count, dtype=torch.float32, device="cpu").reshape(shape) / 50 - 0.5


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH, dtype=torch.float32, device="cpu")
        self.register_buffer("offset", torch.ones(WIDTH, dtype=torch.float32, device="cpu"))
        self.slope = 0.25

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = functional.gelu(self.first(x)) * HERE.scale + self.offset * self.slope
        return functional.dropout(hidden, 0.0, self.training).softmax(-1)


def _layers() -> nn.Module:
    torch.manual_seed(0)
    model = Layers().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(ramp(*parameter.shape))
    return HERE.model(model)  # type: ignore[no-any-return]


def inference() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Matrix product, reduction and constants of the module."""
    return _layers(), (HERE.inputs(ramp(4, WIDTH)),)


def training() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A backward, through operators whose Python code is traced."""
    model = _layers()

    def step(x: Any) -> Any:
        return torch.ops.differences_composite.double(shift(model(x))).square().mean(0)

    step.module = model  # type: ignore[attr-defined]
    return step, (HERE.inputs(ramp(4, WIDTH)).detach().requires_grad_(),)


def views() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Promotion, new tensors of the default dtype, views of an input, and an input that is changed."""
    number, scalar = HERE.number, HERE.scalar

    def function(x: Any, y: Any, *, factor: Any = HERE.default[0]) -> Any:
        y.mul_(number)
        line = torch.linspace(0, 1, WIDTH)
        return x.sin() + line + scalar, y.t()[1:], x.cumsum(0) * factor, torch.ones(3) / 3, y

    return function, (HERE.inputs(ramp(4, WIDTH)), ramp(4, 6))


def random() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Random numbers."""

    def function(x: Any) -> Any:
        return functional.dropout(x + 2, 0.5, True), torch.rand_like(x)

    return function, (HERE.inputs(ramp(8, WIDTH)),)


def layout() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Convolution and attention: the layout of the inputs and the backend decide the code."""
    weight = ramp(4, 2, 3, 3)

    def function(x: Any, image: Any) -> Any:
        heads = x.reshape(1, 2, 4, WIDTH)
        return functional.scaled_dot_product_attention(heads, heads, heads), functional.conv2d(image, weight)

    return function, (HERE.inputs(ramp(8, WIDTH)), HERE.inputs(ramp(1, 2, 6, 6)))


def inside() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Autocast inside of the graph, without a dtype."""

    def function(x: Any) -> Any:
        with torch.autocast("cpu"):
            return (x @ x.t()).relu()

    return function, (HERE.inputs(ramp(4, WIDTH)),)


def sizes() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Dynamic sizes, and sums by index."""

    def function(x: Any) -> Any:
        index = torch.zeros(x.shape[0], dtype=torch.int64)
        total = torch.zeros(2, WIDTH).index_add(0, index, x.float())
        return x * x.shape[0] + (1 if x.shape[0] > 2 else 2), total, x.sum(0)

    return function, (HERE.inputs(ramp(HERE.rows, WIDTH)),)


PROBES = {
    "inference": Probe(inference, grad=False),
    "training": Probe(training, grad=True),
    "views": Probe(views),
    "random": Probe(random, random=True),
    "layout": Probe(layout),
    "inside": Probe(inside),
    "sizes": Probe(sizes, options={"dynamic": True}),
}
