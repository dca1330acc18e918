"""Reads the version from the client's source, and requires the client of exactly that version.

Everything else is in pyproject.toml, which cannot read a file of the other distribution. MANIFEST.in puts
that file into the source distribution, where this runs too. The wheel also gets the example that
``cachesvc quickstart`` runs.
"""

import re
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
SOURCE = ROOT / "client" / "cachesvc_client" / "__init__.py"
[VERSION] = re.findall(r'^__version__ = "([^"]+)"$', SOURCE.read_text("utf-8"), re.MULTILINE)


class BuildWithExample(build_py):
    """Copies ``examples/quickstart`` into the package, as ``cachesvc/example``."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for file in (ROOT / "examples" / "quickstart").glob("*.*"):
                target = Path(self.build_lib, "cachesvc", "example", file.name)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)


setup(
    cmdclass={"build_py": BuildWithExample},
    version=VERSION,
    install_requires=[f"cachesvc-client=={VERSION}", "typer>=0.15", "rich>=13"],
)
