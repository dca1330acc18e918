"""``import cachesvc_client.auto``: attaches to what the CACHESVC_* variables name, and nothing else.

Never raises. With CACHESVC_MODE=off it does nothing. Without CACHESVC_NAME and CACHESVC_BUNDLE it attaches
nothing, and says so in one warning: the import asks for an attach, and the variable is often misspelt.
"""

from __future__ import annotations

from . import attach, enabled, named


def _warn() -> None:
    import logging

    from .hooks import logger
    from .outcome.show_log import show_as_asked

    show_as_asked()
    logger.write(
        logging.WARNING,
        "auto: nothing is attached, this process compiles: set CACHESVC_NAME or CACHESVC_BUNDLE",
    )


if named():
    attach()
elif enabled():
    _warn()
