"""``python -m cachesvc_client``, and the entry point of ``cachesvc-client``."""

import sys

from .commands.cli import main

if __name__ == "__main__":
    sys.exit(main())
