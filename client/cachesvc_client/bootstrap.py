"""What the .pth file and ``every_process/sitecustomize.py`` import at the start of an interpreter.

Only where ``CACHESVC_NAME`` is set. Attaches from the ``CACHESVC_*`` variables; whatever goes wrong is
one line in the log and never an error of the interpreter, which may be any helper of the job.
"""

from __future__ import annotations

import importlib
import os


def _attach() -> None:
    if not os.environ.get("CACHESVC_NAME") or os.environ.get("CACHESVC_MODE", "").strip() == "off":
        return
    try:
        importlib.import_module(f"{__package__}.auto")  # importing it attaches
    except Exception as error:  # noqa: BLE001 - see above
        import logging

        logging.getLogger("cachesvc").warning("cachesvc: not attached: %s", error)


_attach()
