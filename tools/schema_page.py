"""``python -m tools.schema_page``: writes docs/reference/warm.schema.json from what reads a warm spec.

``make pages`` runs it, and a test fails if the file is not what the code says.
"""

from __future__ import annotations

import json

from cachesvc.warm.spec.schema import spec_schema
from tools.markdown import DOCS

PAGE = DOCS / "reference" / "warm.schema.json"


def render() -> str:
    """The whole file, as `cachesvc warm --schema` prints it."""
    return json.dumps(spec_schema(), indent=1) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render())
