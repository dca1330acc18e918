"""Define the differences that a consumer can make inside its own process, by the names of the rows.

Each is a context that yields the function to compile, its input and the arguments of ``torch.compile``. It
takes back what it changes in this process."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import subject
import torch
from torch import nn


@dataclass
class Ask:
    model: Any
    x: torch.Tensor
    options: dict[str, Any] = field(default_factory=dict)


CHANGES: dict[str, Callable[[], contextlib.AbstractContextManager[Ask]]] = {}


def change(function: Callable[[], Iterator[Ask]]) -> Callable[[], Iterator[Ask]]:
    CHANGES[function.__name__] = contextlib.contextmanager(function)
    return function


def batch(rows: int = 4, width: int = 8, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.arange(rows * width, dtype=torch.float32).reshape(rows, width) / 50).to(dtype)


@contextlib.contextmanager
def setting(holder: Any, **values: Any) -> Iterator[None]:
    """Set attributes, and restore them afterwards."""
    before = {name: getattr(holder, name) for name in values}
    for name, value in values.items():
        setattr(holder, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(holder, name, value)


# Hits -----------------------------------------------------------------------------------------


@change
def as_built():
    yield Ask(subject.net(), batch())


@change
def weights():
    yield Ask(subject.net(seed=7), batch())


@change
def values():
    yield Ask(subject.net(), batch() * 3)


@change
def source_moved():
    sys.path.insert(0, str(Path(__file__).parent / "moved"))
    import other_place

    torch.manual_seed(0)
    yield Ask(other_place.Renamed().eval(), batch())


@change
def class_renamed():
    Other = type("Other", (subject.Net,), {})
    yield Ask(Other().eval(), batch())


@change
def fullgraph():
    yield Ask(subject.net(), batch(), {"fullgraph": True})


@change
def mode_default_named():
    yield Ask(subject.net(), batch(), {"mode": "default"})


@change
def batch_20_of_dynamic_8():
    yield Ask(subject.wave(), batch(20, 16), {"dynamic": True})


@change
def compiled_as_function():
    model = subject.net()
    yield Ask(lambda x: model(x), batch())


@change
def unused_submodule():
    model = subject.net()
    model.extra = nn.Linear(3, 3)
    yield Ask(model, batch())


@change
def dynamo_setting():
    """Change settings that steer the tracing and leave the graph as it is."""
    import torch._dynamo.config

    with setting(torch._dynamo.config, recompile_limit=3):
        yield Ask(subject.net(), batch())


# Invisible ------------------------------------------------------------------------------------


@change
def custom_op_body():
    """Change the Python body of a custom operator, which is in no key: the graph calls the body of this
    process."""
    body = subject.shift._backend_fns.copy()
    subject.shift.register_kernel("cpu")(lambda x: x * 3)
    try:
        yield Ask(subject.net(), batch())
    finally:
        subject.shift._backend_fns.clear()
        subject.shift._backend_fns.update(body)
        if not body:
            subject.shift.register_kernel("cpu")(lambda x: x + 1)


# Compiles -------------------------------------------------------------------------------------


@change
def grad_mode():
    with torch.enable_grad():
        yield Ask(subject.net(), batch())


@change
def inference_mode():
    with torch.inference_mode():
        yield Ask(subject.net(), batch())


@change
def autocast():
    with torch.autocast("cpu", torch.bfloat16):
        yield Ask(subject.net(), batch())


@change
def autocast_to_float16():
    """Ask for what the change before, `autocast`, compiled for bfloat16."""
    with torch.autocast("cpu", torch.float16):
        yield Ask(subject.net(), batch())


def product(x):
    return (x @ x.t()).relu()


@change
def product_for_float16():
    with torch.autocast("cpu", torch.float16):
        yield Ask(product, batch())


@change
def product_for_bfloat16_then():
    with torch.autocast("cpu", torch.bfloat16):
        yield Ask(product, batch())


@contextlib.contextmanager
def dtype_of_autocast(value: torch.dtype) -> Iterator[None]:
    """Set the dtype of an autocast that names none."""
    before = torch.get_autocast_dtype("cpu")
    torch.set_autocast_dtype("cpu", value)
    try:
        yield
    finally:
        torch.set_autocast_dtype("cpu", before)


def cast_product(x):
    with torch.autocast("cpu"):
        return x @ x.t()


def cast_sum(x):
    with torch.autocast("cpu"):
        return x.t() @ x + 1


@change
def autocast_inside():
    with dtype_of_autocast(torch.bfloat16):
        yield Ask(cast_product, batch())


@change
def autocast_inside_for_float16_then():
    with dtype_of_autocast(torch.float16):
        yield Ask(cast_product, batch())


@change
def autocast_inside_for_float16():
    with dtype_of_autocast(torch.float16):
        yield Ask(cast_sum, batch())


@change
def autocast_inside_for_bfloat16_then():
    with dtype_of_autocast(torch.bfloat16):
        yield Ask(cast_sum, batch())


@change
def dtype():
    yield Ask(subject.net().double(), batch(dtype=torch.float64))


@change
def bfloat16():
    yield Ask(subject.net().bfloat16(), batch(dtype=torch.bfloat16))


@change
def shape():
    yield Ask(subject.net(), batch(6))


@change
def rank_of_input():
    yield Ask(subject.net(), batch()[None])


@change
def stride():
    yield Ask(subject.net(), batch().t().contiguous().t())


@change
def dynamic():
    yield Ask(subject.net(), batch(), {"dynamic": True})


@change
def static_of_dynamic():
    yield Ask(subject.wave(), batch(8, 16), {"dynamic": False})


@change
def mode():
    yield Ask(subject.net(), batch(), {"mode": "max-autotune-no-cudagraphs"})


@change
def options():
    yield Ask(subject.net(), batch(), {"options": {"max_fusion_size": 8}})


@change
def inductor_config():
    import torch._inductor.config

    with setting(torch._inductor.config, max_fusion_size=7):
        yield Ask(subject.net(), batch())


@change
def inductor_cpp_config():
    import torch._inductor.config

    with setting(torch._inductor.config.cpp, min_chunk_size=777):
        yield Ask(subject.net(), batch())


@change
def functorch_config():
    import torch._functorch.config

    with setting(torch._functorch.config, activation_memory_budget=0.5):
        yield Ask(subject.net(), batch())


@change
def matmul_precision():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield Ask(subject.net(), batch())
    finally:
        torch.set_float32_matmul_precision(before)


@change
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield Ask(subject.net(), batch())
    finally:
        torch.use_deterministic_algorithms(False)


@change
def default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        yield Ask(subject.net().float(), batch())
    finally:
        torch.set_default_dtype(torch.float32)


@change
def threads_in_code():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield Ask(subject.net(), batch())
    finally:
        torch.set_num_threads(before)


def line(x):
    return x + torch.ones(x.shape[1]) / 3


@change
def line_for_float64():
    torch.set_default_dtype(torch.float64)
    try:
        yield Ask(line, batch())
    finally:
        torch.set_default_dtype(torch.float32)


@change
def line_for_one_thread_then():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield Ask(line, batch())
    finally:
        torch.set_num_threads(before)


@change
def line_for_float32_and_two_threads_then():
    yield Ask(line, batch())


@change
def layer():
    net = subject.net()
    yield Ask(nn.Sequential(net, nn.Linear(16, 16)).eval(), batch())


@change
def width():
    class Wide(subject.Net):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(8, 24)

    yield Ask(Wide().eval(), batch())


@change
def activation():
    class Edited(subject.Net):
        def forward(self, x):
            return subject.shift(nn.functional.silu(self.first(x))).softmax(-1) * 2.5

    yield Ask(Edited().eval(), batch())


@change
def constant_in_forward():
    class Edited(subject.Net):
        def forward(self, x):
            return subject.shift(nn.functional.gelu(self.first(x))).softmax(-1) * 2.75

    yield Ask(Edited().eval(), batch())


@change
def traced_operator_body():
    """Change a constant that only an operator's body reads: the graph, and PyTorch's own key, stay as they
    are."""
    with setting(subject, SLOPE=2.0):
        yield Ask(subject.wave(), batch(8, 16), {"dynamic": True})


@change
def library():
    """Load another version of a model's library, whose code traces to another graph."""
    library = ModuleType("transformers")
    library.__version__ = "4.0.1"
    before = sys.modules.get("transformers")
    sys.modules["transformers"] = library
    try:

        class Newer(subject.Net):
            def forward(self, x):
                return subject.shift(nn.functional.gelu(self.first(x), approximate="tanh")).softmax(-1) * 2.5

        yield Ask(Newer().eval(), batch())
    finally:
        del sys.modules["transformers"]
        if before is not None:
            sys.modules["transformers"] = before


@change
def training_flag():
    """Switch dropout on, which makes another graph."""

    class Dropping(subject.Net):
        def forward(self, x):
            return super().forward(nn.functional.dropout(x, 0.0, self.training))

    yield Ask(Dropping().train(), batch())


def named(name: str) -> contextlib.AbstractContextManager[Ask]:
    return CHANGES[name]()


__all__ = ["CHANGES", "Ask", "named"]
