"""Observes every Python process that `cachesvc init` starts, by this folder on PYTHONPATH.

The sitecustomize that would have been found without this one is run after it.
"""

import contextlib
import importlib
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if os.path.abspath(path or os.curdir) != _HERE]
with contextlib.suppress(Exception):  # the program goes first
    importlib.import_module("cachesvc.warm.worker.observing.calls").observe()
_own = sys.modules.pop("sitecustomize", None)
try:
    importlib.import_module("sitecustomize")
except ModuleNotFoundError as error:
    if error.name != "sitecustomize":
        raise
finally:
    if _own is not None:  # the import system looks for the name once more when this returns
        sys.modules.setdefault("sitecustomize", _own)
