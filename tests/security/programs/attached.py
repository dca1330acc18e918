"""A service up to its first compile, without torch: attaches as it is told (JSON, once or more often), prints
what came of it, and lives until its standard input ends."""

import json
import sys

import cachesvc_client
from cachesvc_client.process.process import process

told = json.loads(sys.argv[1])
installed = []
for arguments in told if isinstance(told, list) else [told]:
    session = cachesvc_client.attach(**arguments)
    session.wait(60)
    restored = session.result
    installed += restored.installed if restored else []
print(
    json.dumps(
        {
            "status": session.status,
            "installed": [str(entry.revision) for entry in installed],
            "problems": [*(restored.problems if restored else []), str(session.error or "")],
            "folders": {kind: str(path) for kind, path in process().folders.roots().items()},
        }
    ),
    flush=True,
)
sys.stdin.read()
