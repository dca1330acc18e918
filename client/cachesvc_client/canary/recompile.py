"""Makes a process compile again what it restored, because restored code was wrong."""

from __future__ import annotations


def recompile_all(why: str) -> None:
    """Make every compiled function of this process compile again at its next call, and let Inductor forget
    the code that it has in memory.

    May be called inside of a compiled function, where ``torch._dynamo.reset()`` would free what runs: entries
    are invalidated one by one as Dynamo does when a guarded object dies, at any time
    (``CheckFunctionManager.invalidate``, torch/_dynamo/guards.py); functions keep their other state. Raises
    whatever a torch raises that moved these names.
    """
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list
    from torch._dynamo import convert_frame, guards
    from torch._inductor.utils import clear_caches

    with convert_frame.compile_lock:
        for seen in (convert_frame.input_codes.seen, convert_frame.output_codes.seen):
            for code in [reference() for reference in seen]:
                for entry in _debug_get_cache_entry_list(code) if code is not None else ():
                    state = getattr(entry.guard_manager, "extra_state", None)
                    if state is not None:
                        state.invalidate(entry, guards.DeletedGuardManagerWrapper(why))
        clear_caches()
