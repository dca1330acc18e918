"""Run a service up to its first compile, without torch: attach to NAME, wait as a compile does, and print the
outcome of the restore, which may end after that wait."""

import json
import sys

import cachesvc_client
from cachesvc_client.session.sessions import attached

session = cachesvc_client.attach(sys.argv[1])
attached().before_compile()
session.wait(60)
print(json.dumps({"status": session.status, "reasons": list(cachesvc_client.report().reasons)}))
