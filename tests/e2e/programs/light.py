"""Attach to a bundle and print as JSON which modules the main thread imported for that, and which modules any
thread imported until the restore was over."""

import json
import sys
import threading

main_thread = threading.get_ident()
by_main = []


def note(event, arguments):
    if event == "import" and threading.get_ident() == main_thread:
        by_main.append(arguments[0])


before = set(sys.modules)
sys.addaudithook(note)
import cachesvc_client  # noqa: E402

imported = set(sys.modules) - before
session = cachesvc_client.attach(bundle=sys.argv[1])
attached = list(by_main)
over = session.wait(60)
print(
    json.dumps(
        {
            "imported": sorted(imported),
            "attached": attached,
            "in_all": sorted(set(sys.modules) - before),
            "over": over,
            "status": session.status,
        }
    )
)
