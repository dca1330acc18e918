"""A rank up to its first compile, without torch: attaches to NAME (empty: to what the variables say), waits
as a compile does, and tells what it has."""

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
sys.stdin.read()  # a rank goes on to live
