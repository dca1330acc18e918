"""Compile with tensor subclasses, and print as JSON how PyTorch's cache of traces took their metadata.

Usage: ``subclass.py build OUT KEY`` or ``subclass.py serve BUNDLE``. Every kind makes the same code."""

import json
import sys
import weakref

import sealed
import short_life

import cachesvc_client

how, place = sys.argv[1:3]
session = sealed.open_session() if how == "build" else cachesvc_client.attach(bundle=place)

import torch  # noqa: E402


class Own(torch.Tensor):
    @staticmethod
    def __new__(cls, inner, known):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner, known):
        self.inner, self.known = inner, known

    def __tensor_flatten__(self):
        return ["inner"], {"known": self.known}

    @staticmethod
    def __tensor_unflatten__(inner, metadata, size, stride):
        return Own(inner["inner"], metadata["known"])

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        args = torch.utils._pytree.tree_map(lambda one: one.inner if isinstance(one, Own) else one, args)
        return function(*args, **(kwargs or {}))


class Hashed(Own):
    def _stable_hash_for_caching(self):
        return "hashed"

    @staticmethod
    def __tensor_unflatten__(inner, metadata, size, stride):
        return Hashed(inner["inner"], metadata["known"])


class Holder:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return type(other) is Holder and self.value == other.value

    def __hash__(self):
        return hash(Holder)


WORDS = {"alpha", "beta", "gamma", "delta", "epsilon", "zeta"}
METADATA = {
    "set": WORDS,
    "in an object": ({"a": [1, Holder(WORDS)]},),
    "weak dictionary": weakref.WeakValueDictionary(),
    "lambda, with a hash": lambda x: x,
    "address": id(WORDS),
}
taken = {}
for kind, metadata in METADATA.items():
    torch._dynamo.reset()
    weight = (Hashed if "hash" in kind else Own)(torch.arange(16.0).reshape(4, 4), metadata)
    counts = dict(torch._dynamo.utils.counters["aot_autograd"])

    def function(x, weight=weight):
        return (x.mm(weight.sin()) + 1).cos()

    with torch.no_grad():
        output = torch.compile(function)(torch.ones(4, 4))
        right = torch.allclose(
            output, (torch.ones(4, 4).mm(torch.arange(16.0).reshape(4, 4).sin()) + 1).cos()
        )
    after = torch._dynamo.utils.counters["aot_autograd"]
    taken[kind] = (
        [
            name
            for name in ("hit", "miss", "bypass")
            if after[f"autograd_cache_{name}"] > counts.get(f"autograd_cache_{name}", 0)
        ]
        if right
        else ["wrong"]
    )
if how == "build":
    sealed.seal(session, place, sys.argv[3], "team/subclasses")
report = cachesvc_client.report()
print(json.dumps({"taken": taken, "state": report.state, "reasons": report.reasons}))
short_life.end()
