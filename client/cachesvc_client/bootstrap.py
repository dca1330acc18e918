"""What the .pth file and ``every_process/sitecustomize.py`` import at the start of an interpreter, and vLLM
and SGLang as a plugin.

Where ``CACHESVC_NAME`` or ``CACHESVC_BUNDLE`` is set it attaches from the ``CACHESVC_*`` variables once this
process begins to import torch: most interpreters of a job never do. Where ``CACHESVC_OBSERVE`` is set
(`warm` and tests) it lists the processes that this one starts. ``python -I`` and ``-E`` promise to obey no
variable, so there it does nothing. Whatever goes wrong is one line in the log
and never an error of the interpreter.
"""

from __future__ import annotations

import os
import sys

from . import enabled, named


def _attach() -> None:
    if not named() or not enabled():
        return
    if any("compile_worker" in word for word in sys.orig_argv):
        return  # Inductor's own workers compile what their parent did not find
    try:
        from .session.options import AttachOptions
        from .session.sessions import open_session

        open_session(AttachOptions(), with_torch=True)
    except Exception as error:  # noqa: BLE001 - see above
        _say("not attached", error)


def _observe() -> None:
    log = os.environ.get("CACHESVC_OBSERVE")
    if not log:
        return
    try:
        from .hooks.child_processes import follow

        follow(log)
    except Exception as error:  # noqa: BLE001 - see above
        _say("not observed", error)


def _say(what: str, error: Exception) -> None:
    import logging

    logging.getLogger("cachesvc").warning("cachesvc: %s: %s", what, error)


def plugin() -> None:
    """Do nothing: an engine that loads cachesvc as a plugin (vLLM's ``vllm.general_plugins``, SGLang's
    ``sglang.srt.plugins``) has imported this module for it, and with that has attached."""


if not sys.flags.ignore_environment:
    _observe()
    _attach()
