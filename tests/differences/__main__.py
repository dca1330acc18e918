"""Try facts that differ between builder and service: ``python -m tests.differences [settings] [options]``.

Without ``settings`` it is the hunt: programs and their libraries. With it: the settings of PyTorch.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Run one of the two; return its exit status."""
    if sys.argv[1:2] == ["settings"]:
        from .settings.__main__ import main as of_settings

        del sys.argv[1]
        return of_settings()
    from .hunt.__main__ import main as of_hunt

    return of_hunt()


if __name__ == "__main__":
    sys.exit(main())
