"""Says in words why PyTorch caches a graph nowhere."""

from __future__ import annotations

from .unpicklable import MESSAGE, NOT_SAVED

_CUSTOM_FUNCTION = (
    "it is a custom autograd.Function, which PyTorch traces at each start unless "
    "TORCHINDUCTOR_AUTOGRAD_CACHE_ALLOW_CUSTOM_AUTOGRAD=1 is set, in build and service alike"
)
_PICKLABLE = "make it picklable, such as a named function of a module in the place of a lambda"
_MEANINGS = {
    "autograd_function_apply": _CUSTOM_FUNCTION,
    "FunctionCtx": _CUSTOM_FUNCTION,
    "graphsafe_run_with_rng_state": "gradient checkpointing on a GPU with its random state kept, which "
    "torch 2.13 caches (pytorch#185562)",
    f"{MESSAGE}: the metadata": "make it picklable (a function of a module, a plain dict in the place of a "
    "weak one), or leave it out of what __tensor_flatten__ returns",
    NOT_SAVED: _PICKLABLE,
    MESSAGE: _PICKLABLE,
    "freezing": "graphs with frozen weights hold them: compile without freezing",
}
"""A part of PyTorch's reason -> what the reason means to a user."""


_OF_PART = "fakify_first_call"
"""A part of the reason for which AOTAutograd keeps no part of a graph that Dynamo splits for
``DistributedDataParallel``. Inductor keeps it."""


def is_compiled_again(reason: str) -> bool:
    """Return whether a start compiles a graph again that PyTorch does not keep for this reason."""
    return _OF_PART not in reason


def explain_bypass(reason: str) -> str:
    """Return the sentence for a reason of `counters.Observation.bypassed`, and what it means if known."""
    meaning = next((meaning for part, meaning in _MEANINGS.items() if part in reason), "")
    return f"PyTorch does not cache a graph of this model: {reason}" + (f": {meaning}" if meaning else "")
