"""Run the command line: ``python -m cachesvc``."""

from .cli import main

main()
