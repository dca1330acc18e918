"""``python -m cachesvc``."""

from .cli import main

main()
