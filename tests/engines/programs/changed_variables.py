"""Changes variables of a program for the length of a block."""

import contextlib
import os


@contextlib.contextmanager
def changed_variables(changes):
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
