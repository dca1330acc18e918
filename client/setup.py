"""Puts ``cachesvc_client_bootstrap.pth`` beside the package, in wheels and in editable installs.

Everything else is in pyproject.toml; setuptools has no declarative way to place a file at the root of
site-packages. coverage, hunter and pytest-cov do the same.
"""

import base64
import hashlib
import zipfile
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

NAME = "cachesvc_client_bootstrap.pth"
# Python runs this line at each start; it has to be one line, cheap, and never an error. `python -I` and `-E`
# promise to obey no variable.
LINE = (
    "import os, sys; sys.flags.ignore_environment or "
    'any(map(os.environ.get, ("CACHESVC_NAME", "CACHESVC_BUNDLE", "CACHESVC_OBSERVE"))) and '
    'exec("try:\\n import cachesvc_client.bootstrap\\nexcept Exception:\\n pass")\n'
)


class BuildWithBootstrap(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            Path(self.build_lib, NAME).write_text(LINE)

    def get_outputs(self, include_bytecode: bool = True) -> list:
        return [*super().get_outputs(include_bytecode), str(Path(self.build_lib, NAME))]


class EditableWithBootstrap(editable_wheel):
    def run(self) -> None:
        super().run()
        for wheel in Path(self.dist_dir).glob("*.whl"):
            _add(wheel)


def _add(wheel: Path) -> None:
    """Adds the file and its line of RECORD, so that uninstalling removes it."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(LINE.encode()).digest()).rstrip(b"=").decode()
    with zipfile.ZipFile(wheel) as source:
        held = [(info, source.read(info)) for info in source.infolist()]
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr(NAME, LINE)
        for info, data in held:
            if info.filename.endswith(".dist-info/RECORD"):
                data = f"{NAME},sha256={digest},{len(LINE)}\n".encode() + data
            made.writestr(info, data)


setup(cmdclass={"build_py": BuildWithBootstrap, "editable_wheel": EditableWithBootstrap})
