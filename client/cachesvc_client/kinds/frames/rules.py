"""The files of the kind `frames`.

The folder lies inside of Inductor's, and cachesvc alone writes it::

    <sha256>.frames     pickle, immutable: named by its content, see `stored`
"""

from __future__ import annotations

from ..rules import FileRule, KindRules

SUFFIX = ".frames"
RULES = KindRules("frames", (FileRule(r"[0-9a-f]{64}\.frames", last=True),), deferrable=True)
