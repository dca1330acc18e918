"""Tuned configurations travel: what Inductor's autotuner found is found again in another folder.

The GPU entry of the FX cache holds pickled autotuners with every candidate that was compiled. A process
that loads one looks into ``<xx>/<key>.best_config`` for the winner, and tunes again if it finds none.
Read in torch 2.11 and 2.13 (``torch/_inductor/runtime/{triton_heuristics,autotune_cache}.py``), this
finds none too often:

- the autotuner remembers the *builder's* absolute path, and looks (and writes) there;
- the winner counts only if the hash of the candidates is the same, which changes when one of them does not
  compile, and (2.11) only if there is more than one (pytorch#172819, fixed in 2.13);
- candidates that are added after loading (``_dynamic_scale_rblock``, 2.11) make a choice necessary again,
  and where there was one candidate before, its result is never saved.

So: paths are moved to this process's folder, a recorded winner is taken (when an autotuner is loaded, and
when one is made, so that what is saved holds it), and one that would be lost is recorded. Only which of
PyTorch's own candidates runs is decided here, never what a kernel computes, and no key or setting changes.
The name of a ``.best_config`` is a hash of the kernel's source, which holds the device, the sizes and the
tuning options, and of torch: a winner of other conditions has another name.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from ...hooks import imports
from ...hooks.table import Hook

_log = logging.getLogger("cachesvc")

_HIT = "hit"
_STATE = "autotune_cache_state"
_NO_ARGUMENTS = frozenset(
    {"num_warps", "num_stages", "num_consumer_groups", "num_buffers_warp_spec", "configs_hash"}
    | {"found_by_coordesc", "time_taken_ms", "triton_cache_hash"}
)
"""Fields of a ``.best_config`` that are no arguments of the kernel (``AutotuneCache.save``)."""


def _hook(name: str, purpose: str) -> Hook:
    module = "torch._inductor.runtime.triton_heuristics"
    return Hook(module, f"CachingAutotuner.{name}", purpose, "tuned kernels may be tuned again", role="gpu")


_RECHECK = _hook("recheck_autotune_cache", "finds a tuning result for a kernel of a cached graph")
_PRECOMPILE = _hook("_precompile_worker", "finds a tuning result before candidates are saved")
_AUTOTUNE = _hook("autotune_to_one_config", "has every tuning result saved")
_SCALE = _hook("_dynamic_scale_rblock", "adds no candidate where the result is known")
HOOKS = (_RECHECK, _PRECOMPILE, _AUTOTUNE, _SCALE)


def install_hooks() -> None:
    """Put the hooks in place; they wait for the import of Inductor's autotuner. Safe to call again."""
    _RECHECK.install(_recheck)
    _PRECOMPILE.install(_precompile)
    _AUTOTUNE.install(_autotune)
    _SCALE.install(_scale)


def _recheck(call: imports.Call) -> Any:
    """Runs when an autotuner was loaded from the FX cache."""
    autotuner = call.args[0]
    _quietly(_relocate, autotuner)
    answer = call()
    _quietly(_take_winner, autotuner, call.argument("reload_kernel_from_src"))
    return answer


def _autotune(call: imports.Call) -> Any:
    """Runs before candidates are timed."""
    _quietly(_make_saved, call.args[0])
    return call()


def _precompile(call: imports.Call) -> Any:
    """Runs after candidates are compiled, here or by a worker, and before they are put into an FX entry.
    Without this an entry holds the candidates and not the winner, and PyTorch looks for no winner at all of a
    kernel with one candidate that comes from its source."""
    answer = call()
    autotuner = call.args[0]
    if not _has_winner(autotuner):
        _quietly(_take_winner, autotuner, getattr(autotuner, "_reload_kernel", lambda: autotuner))
    return answer


def _scale(call: imports.Call) -> Any:
    """Adds no candidate after a winner is known; as torch 2.13 has it."""
    return None if _has_winner(call.args[0]) else call()


def _has_winner(autotuner: Any) -> bool:
    return bool((getattr(autotuner, "autotune_cache_info", None) or {}).get(_STATE) == _HIT)


def _quietly(step: Callable[..., None], *args: Any) -> None:
    """A doubt is one more tuning run, never an error of the compile."""
    try:
        step(*args)
    except Exception:  # noqa: BLE001 - PyTorch's own way is always open
        _log.debug("%s: left to PyTorch", step.__name__, exc_info=True)


def local_path(path: str, root: str) -> str | None:
    """Where a kernel's source that lay at ``path`` in another cache folder lies in ``root``; ``None`` if
    ``path`` is no such file (``PyCodeCache``: ``<root>/<2nd and 3rd letter>/<hash>.py``)."""
    folder, name = os.path.split(path)
    if len(name) < 4 or os.path.basename(folder) != name[1:3]:
        return None
    return os.path.join(root, name[1:3], name)


def _relocate(autotuner: Any) -> None:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    local = local_path(autotuner.filename, cache_dir()) if autotuner.filename else None
    if local is None or local == autotuner.filename:
        return
    autotuner.filename = local
    cache = getattr(autotuner.save_cache_hook, "__self__", None)
    if cache is not None and cache.local_cache:
        store, path = cache.local_cache
        cache.local_cache = (store, os.path.join(os.path.dirname(local), os.path.basename(path)))


def _take_winner(autotuner: Any, reload_kernel: Callable[[], Any]) -> None:
    """Leaves the autotuner with the one compiled configuration that was recorded for its kernel."""
    best = _recorded(autotuner)
    if best is None:
        return
    by_descent = bool(best.get("found_by_coordesc"))
    if _descends(autotuner) and not by_descent:
        return  # the descent has not ended: its result is still to come
    results = autotuner.compile_results
    same = [result for result in results if _is(result.config, best)]
    if len(same) > 1:
        return  # a user's candidates may differ in what no record tells
    if same:
        same[0].config.found_by_coordesc = by_descent
        autotuner.compile_results = same
    else:
        config = None if _kind(autotuner) in _GIVEN else _config(best, results[0].config)
        if config is None:
            return
        if autotuner.fn.fn is None:
            autotuner.fn = reload_kernel().fn
        config.found_by_coordesc = by_descent
        autotuner.compile_results = [autotuner._precompile_config(config)]
    autotuner.autotune_cache_info = {**(autotuner.autotune_cache_info or {}), _STATE: _HIT}


def _descends(autotuner: Any) -> bool:
    """Whether PyTorch goes on from a winner by coordinate descent: not where candidates are given, nor for
    reductions in deterministic mode (``CachingAutotuner.coordinate_descent_tuning``)."""
    kind = _kind(autotuner)
    reduces = kind in ("REDUCTION", "PERSISTENT_REDUCTION", "SPLIT_SCAN")
    still = kind in _GIVEN or (reduces and getattr(autotuner, "deterministic_mode", False))
    return bool(autotuner.inductor_meta.get("coordinate_descent_tuning")) and not still


_GIVEN = frozenset({"TEMPLATE", "USER_AUTOTUNE", "FIXED"})
"""Kinds of kernels whose candidates are given: the winner is one of them."""


def _kind(autotuner: Any) -> str:
    """The name of PyTorch's ``HeuristicType``."""
    return str(getattr(getattr(autotuner, "heuristic_type", None), "name", ""))


def _recorded(autotuner: Any) -> dict[str, Any] | None:
    from torch._inductor.runtime.autotune_cache import AutotuneCache

    meta = autotuner.inductor_meta
    if not autotuner.filename or meta.get("force_disable_caches"):
        return None
    cache = AutotuneCache.create({**meta, "autotune_remote_cache": False}, autotuner.filename, "")
    best = cache._read() if cache else None
    return best if isinstance(best, dict) else None


def _is(config: Any, best: dict[str, Any]) -> bool:
    return (
        all(best.get(name) == value for name, value in config.kwargs.items())
        and config.num_warps == best.get("num_warps")
        and config.num_stages == best.get("num_stages")
    )


def _config(best: dict[str, Any], like: Any) -> Any:
    """The recorded configuration, if it has the arguments that the kernel takes."""
    kwargs = {name: best[name] for name in like.kwargs if name in best}
    if kwargs.keys() != like.kwargs.keys() or set(best) - _NO_ARGUMENTS - kwargs.keys():
        return None
    made = type(like)(kwargs, num_warps=best["num_warps"], num_stages=best["num_stages"])
    for name in ("num_consumer_groups", "num_buffers_warp_spec"):
        if name in best and hasattr(like, name):
            setattr(made, name, best[name])
    return made


def _make_saved(autotuner: Any) -> None:
    """A choice between one candidate and those that were added to it is recorded as every other one is."""
    from torch._inductor.runtime.autotune_cache import AutotuneCache

    meta = autotuner.inductor_meta
    if autotuner.save_cache_hook or not autotuner.filename or meta.get("force_disable_caches"):
        return
    cache = AutotuneCache.create({**meta, "autotune_remote_cache": False}, autotuner.filename, "")
    if cache is not None:
        autotuner.save_cache_hook = cache.save
