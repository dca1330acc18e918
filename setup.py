"""Reads the version from the client's source, and requires the client of exactly that version.

Everything else is in pyproject.toml, which cannot read a file of the other distribution. MANIFEST.in puts
that file into the source distribution, where this runs too.
"""

import re
from pathlib import Path

from setuptools import setup

SOURCE = Path(__file__).parent / "client" / "cachesvc_client" / "__init__.py"
[VERSION] = re.findall(r'^__version__ = "([^"]+)"$', SOURCE.read_text("utf-8"), re.MULTILINE)

setup(
    version=VERSION,
    install_requires=[f"cachesvc-client=={VERSION}", "typer>=0.15", "rich>=13"],
)
