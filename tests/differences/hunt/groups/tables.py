"""Cases for what a program tells Inductor: decompositions, lowerings, patterns and passes."""

from __future__ import annotations

import random
from collections.abc import Iterator

from ..case import Case

_CLEAR = "    getattr(decomposition.fast_random_decomps, 'cache_clear', int)()\n"
OPERATORS = ("sin", "tanh", "sigmoid", "relu", "silu", "gelu", "erf", "exp")
PLAIN = "def program(x):\n    return torch.{op}(x) + SALT\n"
_IMPORTS = "from torch._inductor import config as inductor, decomposition, lowering, pattern_matcher\nfrom torch._inductor.fx_passes import joint_graph, post_grad, pre_grad\nimport torch._inductor.compile_fx\naten = torch.ops.aten\n"
_SWAP = """
def swapped(graph, by):
    graph = getattr(graph, "graph", graph)
    for node in graph.nodes:
        if node.target is aten.{op}.default or node.target in (torch.{op}, F.{op} if hasattr(F, "{op}") else None):
            node.target = by if node.target is aten.{op}.default else torch.cos
            node.kwargs = {}
            node.args = node.args[:1]
"""
_UUID = """
from torch._inductor.custom_graph_pass import CustomGraphPass
class Pass(CustomGraphPass):
    def __call__(self, graph):
        swapped(graph, {target})
    def uuid(self):
        return b"the same"
"""
CHANGES = {
    "decompositions[]": "decomposition.decompositions[aten.{op}.default] = lambda x, **k: x.cos()",
    "register_decomposition": "decomposition.register_decomposition([aten.{op}.default])(lambda x, **k: x.cos())",
    "fast_random_decomps": "decomposition.fast_random_decomps = (lambda old: lambda: {**old(), aten.{op}.default: lambda x, **k: x.cos()})(decomposition.fast_random_decomps)",
    "select_decomp_table": "torch._inductor.compile_fx.select_decomp_table = (lambda old: lambda *a: {**old(*a), aten.{op}.default: lambda x, **k: x.cos()})(torch._inductor.compile_fx.select_decomp_table)",
    "core_aten_decompositions": "torch._decomp.decomposition_table[aten.{op}.default] = lambda x, **k: x.cos()",
    "post_grad pattern": "pattern_matcher.register_graph_pattern(pattern_matcher.CallFunction(aten.{op}.default, pattern_matcher.KeywordArg('x')), pass_dict=post_grad.pass_patterns[1])(lambda match, x: match.replace_by_example(lambda x: aten.cos.default(x), [x]))",
    "joint_graph pattern": "pattern_matcher.register_graph_pattern(pattern_matcher.CallFunction(aten.{op}.default, pattern_matcher.KeywordArg('x')), pass_dict=joint_graph.patterns)(lambda match, x: match.replace_by_example(lambda x: aten.cos.default(x), [x]))",
    "register_replacement": "pattern_matcher.register_replacement(lambda x: aten.{op}.default(x), lambda x: aten.cos.default(x), [torch.empty(4, 8)], pattern_matcher.fwd_only, post_grad.pass_patterns[0])",
    "post_grad_passes": "post_grad.post_grad_passes = (lambda old: lambda gm, i: (swapped(gm, aten.cos.default), old(gm, i))[1])(post_grad.post_grad_passes); torch._inductor.compile_fx.post_grad_passes = post_grad.post_grad_passes",
    "joint_graph_passes": "torch._inductor.compile_fx.joint_graph_passes = (lambda old: lambda gm, *a: (swapped(gm, aten.cos.default), old(gm, *a))[1])(torch._inductor.compile_fx.joint_graph_passes)",
    "pre_grad_passes": "torch._inductor.compile_fx.pre_grad_passes = (lambda old: lambda gm, *a: (swapped(gm, aten.cos.default), old(gm, *a))[1])(torch._inductor.compile_fx.pre_grad_passes)",
    "post_grad_custom_post_pass, a function": "inductor.post_grad_custom_post_pass = lambda graph: swapped(graph, aten.cos.default)",
    "pre_grad_custom_pass": "inductor.pre_grad_custom_pass = lambda graph: swapped(graph, aten.cos.default)",
    "joint_custom_pre_pass, a function": "inductor.joint_custom_pre_pass = lambda graph: swapped(graph, aten.cos.default)",
}  # fmt: skip
UUIDS = (
    "post_grad_custom_post_pass",
    "post_grad_custom_pre_pass",
    "joint_custom_pre_pass",
    "joint_custom_post_pass",
)
LOWERINGS = {
    "lowerings[]": "lowering.lowerings[aten.{op}.default] = lowering.lowerings[aten.cos.default]",
    "register_lowering": "lowering.register_lowering(aten.{op}.default, type_promotion_kind=None)(lambda x: lowering.lowerings[aten.cos.default](x))",
    "make_fallback": "lowering.lowerings.pop(aten.{op}.default, None); lowering.make_fallback(aten.{op}.default)",
    "ops handler": "from torch._inductor import ops_handler\n    from torch._inductor.codegen import cpp\n    cpp.CppOverrides.{op} = staticmethod(lambda x: f'std::cos({x})'); cpp.CppVecOverrides.{op} = staticmethod(lambda x: f'{x}.cos()')",
}  # fmt: skip


def of_tables(rng: random.Random) -> Iterator[Case]:
    """Yield cases for each table of Inductor's, with several operators."""
    for what, change in CHANGES.items():
        for operator in rng.sample(OPERATORS, 3):
            yield _case(what, change, operator)
    for setting in UUIDS:
        for operator in rng.sample(OPERATORS, 2):
            target = "aten.cos.default if CHANGED else aten.sin.default"
            source = _UUID.replace("{target}", target) + f"inductor.{setting} = Pass()\n"
            yield _case(f"{setting}, the same uuid", "pass", operator, source)
            source = (
                _UUID.replace("{target}", "TARGET")
                + f"inductor.{setting} = Pass()\nTARGET = aten.sin.default\n"
            )
            change = "globals()['TARGET'] = aten.cos.default"
            yield _case(f"{setting}, the same uuid, a global", change, operator, source)
    for what, change in LOWERINGS.items():
        for operator in ("sin", "tanh"):
            yield _case(what, change, operator, lowered=True)


def _case(what: str, change: str, operator: str, before: str = "", lowered: bool = False) -> Case:
    program = PLAIN if operator not in ("silu", "gelu") else PLAIN.replace("torch.", "F.")
    swap = _SWAP.replace("torch.{op}, F", "torch.sin, F") if operator in ("silu", "gelu") else _SWAP
    source = f"{_IMPORTS}{swap}{before}{program}def change():\n    {change}\n{_CLEAR}".replace(
        "{op}", operator
    )
    # Eager does not know what Inductor is told: a compile without a cache judges.
    return Case("tables", f"{what} for {operator}", source, lowered=lowered, judged_by_compile=True)
