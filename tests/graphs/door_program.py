"""Print as JSON the keys that PyTorch looks for in each situation: ``door_program.py plain|armed VERSION``.

In version 0 a situation is as torch was released; versions 1 and 2 differ in one constant of the program's.
Nothing is compiled: the program stops Inductor after the look-up."""

import contextlib
import dataclasses
import functools
import json
import sys
import weakref

if sys.argv[1] == "armed":
    from cachesvc_client.process.process import process

    process().arm()

import torch
import torch._functorch._aot_autograd.autograd_cache as autograd_cache
import torch._inductor.codecache as codecache
import torch._inductor.compile_fx as compile_fx
import torch._inductor.config as config
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from cachesvc_client.hooks import imports

VERSION = int(sys.argv[2])
aten = torch.ops.aten
keys: dict[str, list[str]] = {}
reasons: dict[str, str] = {}
now = ""


class Stopped(Exception):
    pass


def stop_after_lookup(_):
    raise Stopped


def noting(position):
    def looked_up(call):
        answer = call()
        keys[now].append(call.args[0] if position is None else answer[position])
        return answer

    return looked_up


# As hooks of cachesvc: it would take functions of this program in torch for replacements.
imports.hook(codecache, "FxGraphCache.load_with_key", noting(None))
imports.hook(autograd_cache, "autograd_cache_key", noting(0))
imports.hook(compile_fx, "fx_codegen_and_compile", stop_after_lookup, reaches=(Stopped,))


def shifted(function):
    """Return a copy of a function that adds the version's number."""

    @functools.wraps(function)
    def replaced(*args, **kwargs):
        return function(*args, **kwargs) + NUMBERS[VERSION]

    return replaced


NUMBERS = [0.0, 0.25, 0.75]


@contextlib.contextmanager
def put(holder, name, value):
    had, before = name in vars(holder), vars(holder).get(name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, before) if had else delattr(holder, name)


@contextlib.contextmanager
def entry(table, key, value):
    before = table.get(key)
    table[key] = value
    try:
        yield
    finally:
        table[key] = before
        if before is None:
            del table[key]


def replaced(holder, name):
    """Return a context in which a name of torch leads to the program's code; in version 0 to torch's own."""
    return lambda: put(holder, name, shifted(getattr(holder, name))) if VERSION else contextlib.nullcontext()


def swapped(holder, name, *others):
    """Return a context in which a name of torch leads to another function of torch's."""
    return lambda: put(holder, name, others[VERSION - 1]) if VERSION else contextlib.nullcontext()


def own(x, *_):
    return x * NUMBERS[VERSION]


class Helper:
    def __init__(self):
        self.table = {"n": [1, {"deep": NUMBERS[VERSION]}]}

    def scaled(self, x):
        return x * self.table["n"][1]["deep"]


HELPER = Helper()


class Hashed:
    __hash__ = [lambda _: 1, lambda _: 2, lambda _: 3][VERSION]


@dataclasses.dataclass
class Described:
    one: int = dataclasses.field(default=1, metadata={"n": NUMBERS[VERSION]})


HASHED = Hashed()
REFERENCE = weakref.ref([HELPER, DESCRIBED := Described(), HASHED][VERSION])
DIRECT = functools.partial(torch.mul, other=NUMBERS[VERSION])
NAMED = [torch.sin, torch.cos, torch.tan][VERSION]
CASES = [[torch.sin, torch.cos, torch.tan][VERSION]]
FUNCTIONS = {"f": [torch.sin, torch.cos, torch.tan][VERSION]}


@torch._dynamo.allow_in_graph
def in_graph(x):
    return x * 2 + NUMBERS[VERSION]


def in_checkpoint(x):
    return checkpoint(lambda y: in_graph(y).sin(), x, use_reentrant=False)


class Quantised(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, _meta, _size, _stride):
        return Quantised(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is aten.detach.default:
            return Quantised(args[0].inner)
        plain = [HELPER.scaled(one.inner) if isinstance(one, Quantised) else one for one in args]
        return func(*plain, **(kwargs or {}))


def operator(name, backward):
    """Return a custom operator with a backward of the program's."""

    def body(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    made = torch.library.custom_op(f"door::{name}", body, mutates_args=())
    made.register_fake(torch.empty_like)
    made.register_autograd(backward)
    return lambda x: made(x) * 2


@contextlib.contextmanager
def implemented(name, key):
    """Put an implementation of an operator of PyTorch's into the dispatcher."""
    if not VERSION:
        yield
        return
    library = torch.library.Library("aten", "IMPL")
    library.impl(name, lambda x: aten.tanh(x) + NUMBERS[VERSION], key)
    yield
    library._destroy()


@contextlib.contextmanager
def lowering():
    from torch._inductor import lowering as module

    if not VERSION:
        yield
        return
    before = dict(module.lowerings)
    number = NUMBERS[VERSION]
    module.register_lowering(aten.relu.default, type_promotion_kind=None)(
        lambda x: module.lowerings[aten.add.Tensor](x, number)
    )
    yield
    module.lowerings.clear()
    module.lowerings.update(before)


@contextlib.contextmanager
def pattern():
    from torch._inductor.fx_passes import post_grad
    from torch._inductor.pattern_matcher import Arg, CallFunction, register_graph_pattern

    passes, number = post_grad.pass_patterns[1], NUMBERS[VERSION]
    if VERSION:

        @register_graph_pattern(CallFunction(aten.tanh.default, Arg()), pass_dict=passes)
        def handler(match, x):
            match.replace_by_example(lambda x: x * number, [x])

    yield
    if VERSION:
        passes.patterns.popitem()


@contextlib.contextmanager
def pattern_taken_out():
    """Take one of torch's own patterns out, a different one in each version but the first."""
    from torch._inductor.fx_passes import post_grad

    patterns = post_grad.pass_patterns[1].patterns
    several = [one for one in patterns.values() if one][VERSION]
    kept = several.pop(0) if VERSION else None
    yield
    if VERSION:
        several.insert(0, kept)


@contextlib.contextmanager
def same_uuid():
    from torch._inductor.custom_graph_pass import CustomGraphPass

    number = NUMBERS[VERSION]

    class Pass(CustomGraphPass):
        def __call__(self, graph):
            graph.number = number

        def uuid(self):
            return "always the same"

    if not VERSION:
        yield
        return
    with config.patch(post_grad_custom_pre_pass=Pass()):
        yield


def decomposed():
    from torch._inductor import decomposition

    number = NUMBERS[VERSION]
    function = (lambda x: aten.mul(x, number)) if VERSION else decomposition.decompositions[aten.silu.default]
    return entry(decomposition.decompositions, aten.silu.default, function)


@contextlib.contextmanager
def taken_out():
    """Take an entry out of a table, a different one in each version but the first."""
    from torch._inductor.decomposition import decompositions

    operator = [None, aten.hardswish.default, aten.hardsigmoid.default][VERSION]
    value = decompositions.pop(operator, None)
    yield
    if value is not None:
        decompositions[operator] = value


def other_lowering():
    """Return a context in which another operator's lowering stands for one of torch's."""
    from torch._inductor.lowering import lowerings

    mine = [aten.erf.default, aten.cos.default, aten.tan.default][VERSION]
    return entry(lowerings, aten.erf.default, lowerings[mine])


def decompositions_chosen():
    number, before = NUMBERS[VERSION], compile_fx.select_decomp_table

    def chosen():
        return {**before(), aten.elu.default: lambda x, *_: aten.mul(x, number)}

    return put(compile_fx, "select_decomp_table", chosen) if VERSION else nothing()


def cast(name):
    """Return a custom operator with a rule of autocast."""

    def body(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    made = torch.library.custom_op(f"door::{name}", body, mutates_args=())
    made.register_fake(torch.empty_like)
    made.register_autocast("cpu", [torch.float64, torch.bfloat16, torch.float16][VERSION])
    return lambda x: made(x) * 2


def of_one_memory():
    memory = torch.zeros(128)
    begin = [64, 0, 8][VERSION]
    return memory[:64].view(8, 8), memory[begin : begin + 64].view(8, 8)


def writes(pair):
    pair[0].add_(pair[1])
    return pair[0] * 2


def nothing():
    return contextlib.nullcontext()


x = torch.arange(64.0).reshape(8, 8) / 50
tensor = torch.Tensor
SITUATIONS = {
    # what the program replaced in torch
    "functional.silu": (replaced(functional, "silu"), lambda x: x),
    "functional.layer_norm": (replaced(functional, "layer_norm"), lambda x: x + 1),
    "torch.relu": (swapped(torch, "relu", torch.sigmoid, torch.tanh), lambda x: x + 2),
    "functional.gelu": (swapped(functional, "gelu", functional.silu, torch.tanh), lambda x: x + 3),
    "functional.mish": (swapped(functional, "mish", functional.silu, functional.relu), lambda x: x + 4),
    "Linear.forward": (replaced(nn.Linear, "forward"), lambda x: x + 5),
    "ReLU.forward": (swapped(nn.ReLU, "forward", nn.GELU.forward, nn.SiLU.forward), lambda x: x + 6),
    "Module.__call__": (replaced(nn.Module, "__call__"), lambda x: x + 7),
    "Tensor.__getitem__": (replaced(tensor, "__getitem__"), lambda x: x[1:]),
    "Tensor.__matmul__": (replaced(tensor, "__matmul__"), lambda x: x @ x),
    "Tensor.__mul__": (replaced(tensor, "__mul__"), lambda x: x * x),
    "Tensor.softmax": (
        swapped(tensor, "softmax", tensor.log_softmax, tensor.cumsum),
        lambda x: x.softmax(-1),
    ),
    "Tensor.sigmoid": (swapped(tensor, "sigmoid", tensor.tanh, tensor.sin), lambda x: x.sigmoid()),
    "Tensor.mT": (
        lambda: put(tensor, "mT", property(shifted(lambda one: one.t()))) if VERSION else nothing(),
        lambda x: x.mT + 1,
    ),
    "class in torch.nn": (swapped(nn, "ReLU", nn.GELU, nn.SiLU), lambda x: x + 8),
    "a function of torch._refs": (replaced(torch._refs, "abs"), lambda x: x.abs()),
    "torch._VF": (swapped(torch._VF, "feature_dropout", own, torch.dropout), lambda x: x + 10),
    "an operator": (swapped(aten, "square", aten.sin, aten.cos), lambda x: x + 11),
    "an overload": (swapped(aten.square, "default", aten.sin.default, aten.cos.default), lambda x: x + 12),
    # what a graph calls
    "allow_in_graph in a checkpoint": (nothing, in_checkpoint),
    "subclass": (nothing, lambda x: x + 9, lambda: Quantised(x.detach())),
    "subclass as a weight": (nothing, lambda x: x @ WEIGHT),
    # the dispatcher
    "AutogradCPU": (lambda: implemented("sigmoid", "AutogradCPU"), lambda x: x.sigmoid() + 1),
    "CompositeImplicit": (
        lambda: implemented("silu", "CompositeImplicitAutograd"),
        lambda x: functional.silu(x) + 1,
    ),
    # Inductor's tables
    "decomposition": (decomposed, lambda x: functional.silu(x) + 2),
    "a decomposition taken out": (taken_out, lambda x: x + 14),
    "lowering": (lowering, lambda x: x.relu() + 3),
    "another operator's lowering": (other_lowering, lambda x: x.erf() + 3),
    "select_decomp_table": (decompositions_chosen, lambda x: functional.elu(x) + 3),
    "pattern": (pattern, lambda x: x.tanh() + 4),
    "a pattern taken out": (pattern_taken_out, lambda x: x + 15),
    "a pass with the same uuid": (same_uuid, lambda x: x.cos() + 5),
    # what an operator is, and the memory of inputs
    "a rule of autocast": (nothing, cast("cast"), x.clone),
    "inputs in one memory": (nothing, writes, of_one_memory),
    # what an operator's code reads
    "a method of an object": (nothing, operator("method", lambda _, gradient: HELPER.scaled(gradient))),
    "a function in a dict": (
        nothing,
        operator("dict", lambda _, gradient: FUNCTIONS["f"](gradient)),
    ),
    "a function in a list": (nothing, operator("list", lambda _, gradient: CASES[0](gradient))),
    "torch's under a global name": (nothing, operator("named", lambda _, gradient: NAMED(gradient))),
    "a hash": (nothing, operator("hash", lambda _, gradient: gradient * hash(HASHED))),
    "metadata of a field": (
        nothing,
        operator("field", lambda _, gradient: gradient * dataclasses.fields(DESCRIBED)[0].metadata["n"]),
    ),
    "a weak reference": (
        nothing,
        operator("weak", lambda _, gradient: gradient * (REFERENCE() is not HELPER)),
    ),
    "a partial": (nothing, operator("partial", lambda _, gradient: DIRECT(gradient))),
}
WEIGHT = nn.Parameter(Quantised(torch.ones(8, 8)), requires_grad=False)


def main():
    global now
    chosen = sys.argv[3:] or SITUATIONS
    for now in chosen:
        context, function, *inputs = SITUATIONS[now]
        keys[now] = []
        torch._dynamo.reset()
        value = inputs[0]() if inputs else x.clone().requires_grad_()
        with context(), contextlib.suppress(Stopped):
            try:
                torch.compile(lambda one, call=function: call(one) * 1.5)(value)
            except Exception as error:  # noqa: BLE001
                if not isinstance(error.__cause__, Stopped) and "Stopped" not in str(error):
                    reasons[now] = f"{type(error).__name__}: {error}"[:300]
    print(json.dumps({"keys": keys, "errors": reasons}))


main()
