"""Print what client and registry require on a GPU machine, with the versions of the lock.

``python locked.py requirements/server.txt``. The machine has torch with its requirements.
"""

import re
import sys
from pathlib import Path

WANTED = """alembic annotated-doc annotated-types cffi click cryptography fastapi h11 idna anyio mako
joserfc opentelemetry-api pycparser pydantic pydantic-core pydantic-settings python-dotenv redis
securesystemslib sqlalchemy sqlmodel starlette tuf typer typing-extensions typing-inspection uvicorn
zstandard""".split()

locked = dict(re.findall(r"^([a-z0-9._-]+)==([^ ;\\]+)", Path(sys.argv[1]).read_text(), re.M))
for name in WANTED:
    if name not in locked:
        sys.exit(f"error: {name} is not in {sys.argv[1]}")
    print(f"{name}=={locked[name]}")
