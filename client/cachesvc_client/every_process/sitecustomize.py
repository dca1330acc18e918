"""Attaches every Python process of a job, by a folder on PYTHONPATH.

`cachesvc-client run` puts this folder there: it reaches interpreters where the client is importable but
its .pth file is not in place (PYTHONPATH or --target installs, images that copy site-packages).
The sitecustomize that would have been found without us (a distribution's, an APM agent's) is run first.
Like the .pth file it is no help under -S, -I and -E, and where another Python has no client.
"""

import contextlib
import importlib
import os
import sys


def _run_the_next_one() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or os.curdir) != here]
    own = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if own is not None:  # the import system looks for the name once more when this returns
            sys.modules.setdefault("sitecustomize", own)


try:
    _run_the_next_one()
finally:
    if any(map(os.environ.get, ("CACHESVC_NAME", "CACHESVC_BUNDLE", "CACHESVC_OBSERVE"))):
        with contextlib.suppress(Exception):  # the job's interpreter goes first
            importlib.import_module("cachesvc_client.bootstrap")
