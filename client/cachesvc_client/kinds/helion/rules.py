"""The files of the kind `helion`.

Helion keeps the best configuration of a kernel in ``<HELION_CACHE_DIR>/<key>.best_config``, and writes there
as it does without cachesvc. cachesvc keeps its own records beside that, under names of its own::

    cachesvc/<key>/<made>.json      a configuration, and what Helion's key leaves out, see `made`

``<key>`` is Helion's own key, and ``<made>`` is a digest of the rest: two releases of Helion make two
configurations of one key.
"""

from __future__ import annotations

import re

from ..rules import FileRule, KindRules

FOLDER = "cachesvc"
"""The folder in the kind's folder that holds one folder for each key."""
_PATTERN = FOLDER + r"/([0-9a-f]{64})/[0-9a-f]{16}\.json"

RULES = KindRules("helion", (FileRule(_PATTERN, write="ours"),))


def key_of(path: str) -> str:
    """Return Helion's key in the path of a record; an empty text for other paths."""
    match = re.fullmatch(_PATTERN, path)
    return match[1] if match else ""
