"""The files of the kind `tilelang`.

TileLang keeps a kernel in ``TILELANG_CACHE_DIR/<version>/<platform>/kernels/<key>``, by default below the
user's home, and writes there as it does without cachesvc. cachesvc keeps copies beside that, under names of
its own::

    cachesvc/<host>/<key>/<made>/params.json        types and shapes of the parameters, which TileLang parses
    cachesvc/<host>/<key>/<made>/device_kernel.cu   sources, which TileLang shows and does not compile again
    cachesvc/<host>/<key>/<made>/host_kernel.cu
    cachesvc/<host>/<key>/<made>/kernel_lib.so      the machine code for a CPU, which TileLang loads
    cachesvc/<host>/<key>/<made>/executable.so      that for a GPU, with the host's part
    cachesvc/<host>/<key>/<made>/manifest.json      TileLang's own list of sizes and digests
    cachesvc/<host>/<key>/<made>/made.json          what TileLang's key leaves out, see `provenance`

``<host>`` is the id of the builder's host (`rules.host_id`), ``<key>`` is TileLang's own key, and
``<made>`` is a digest of ``made.json``: two compilers make two kernels of one key. Releases before 0.1.15
keep the parameters in a pickle, which no rule knows.
"""

from __future__ import annotations

import re

from ..rules import host_rules
from .versions import BACKENDS, Backend

MADE = "made.json"
"""The name of the file that says with what a kernel was made."""
MANIFEST = "manifest.json"
"""The name of TileLang's own list of a kernel's files."""
_COMMON = ("params.json", "device_kernel.cu", "host_kernel.cu")
_LIBRARIES = tuple(backend.library for backend in BACKENDS)


RULES = host_rules("tilelang", f"({'|'.join(map(re.escape, (*_COMMON, *_LIBRARIES, MANIFEST)))})", MADE)


def files_of(backend: Backend) -> tuple[str, ...]:
    """Return the names of the files that TileLang's own list of a kernel has."""
    return (*_COMMON, backend.library)
