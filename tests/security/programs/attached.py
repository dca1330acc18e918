"""A service up to its first compile, without torch: attaches as it is told (JSON), prints what came of it,
and lives until its standard input ends."""

import json
import sys

import cachesvc_client
from cachesvc_client.process import process

session = cachesvc_client.attach(**json.loads(sys.argv[1]))
session.wait(60)
restored = session.restored
print(
    json.dumps(
        {
            "status": session.status,
            "installed": [str(entry.revision) for entry in restored.installed] if restored else [],
            "problems": [*(restored.problems if restored else []), str(session.error or "")],
            "folders": {kind: str(path) for kind, path in process().folders.roots().items()},
        }
    ),
    flush=True,
)
sys.stdin.read()
