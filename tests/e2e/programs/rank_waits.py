"""Run a rank up to its first compile, without torch: attach to NAME, wait as a compile does, and print what
is installed.

An empty NAME attaches as the variables say."""

import json
import os
import sys

import cachesvc_client
from cachesvc_client.session.sessions import attached

if os.environ["RANK"] != os.environ.get("ABSENT"):
    cachesvc_client.attach(sys.argv[1] or None)
attached().before_compile()
report = cachesvc_client.report()
answer = {
    "rank": int(os.environ["RANK"]),
    "moved": report.bytes_moved,
    "files": sum(revision.files for revision in report.revisions),
    "reasons": list(report.reasons),
}
print(json.dumps(answer), flush=True)
sys.stdin.read()  # A rank stays alive after its compile.
