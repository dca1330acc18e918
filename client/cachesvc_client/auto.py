"""``import cachesvc_client.auto``: attaches to what the CACHESVC_* variables name, and nothing else.

Never raises; without CACHESVC_NAME and CACHESVC_BUNDLE, or with CACHESVC_MODE=off, it does nothing.
"""

from __future__ import annotations

from . import attach, named

if named():
    attach()
