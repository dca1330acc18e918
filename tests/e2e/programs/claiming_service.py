"""Run a service up to its first compile, without torch: attach to NAME, then read one command a line.

``compile``: do what precedes a compile. ``call``: do what precedes a call of a compiled function. ``attach``:
attach to NAME again. ``publish``: publish a file as if this process had compiled it. ``fork``: start a child
that ends. ``end``: end. The service answers each command with a line of JSON."""

import json
import os
import sys
import time
from pathlib import Path

import cachesvc_client
from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.config.settings import Config
from cachesvc_client.http.registry import Remote
from cachesvc_client.node.installed import RestoreResult
from cachesvc_client.process.process import process
from cachesvc_client.publication.as_you_go import with_lane
from cachesvc_client.publication.build_bundle import Draft, build_bundle
from cachesvc_client.publication.publish_bundle import publish_bundle
from cachesvc_client.session.sessions import attached
from cachesvc_client.wire.errors import CacheSvcError
from cachesvc_client.wire.manifest.records import Workload
from cachesvc_client.wire.names import Name, Target

NAME = Name.parse(sys.argv[1])
session = cachesvc_client.attach(sys.argv[1])
session.wait(60)


def claims():
    return session.claims


def compiling():
    begin = time.monotonic()
    attached().before_compile()
    restored = session.result
    return {
        "waited": time.monotonic() - begin,
        "installed": [entry.revision for entry in restored.installed] if restored else [],
        "holds": NAME in claims(),
        "status": session.status,
    }


def calling():
    begin = time.monotonic()
    eager = attached().runs_eagerly()
    return {"eager": eager, "seconds": time.monotonic() - begin, "ready": session.wait(0)}


def publishing():
    config = with_lane(Config.read())
    draft = Draft(
        NAME, Target("service"), process().prepare(config, RestoreResult())[1], Workload(), (), config.lane
    )
    path = Path(os.environ["TMPDIR"]) / "made.cachesvc"
    files = [SourceFile("inductor", f"fxgraph/ab/f{'a' * 30}/{'b' * 30}", str(os.getpid()).encode())]
    build_bundle(files, draft, SigningKey.load(config.signing_key), path)
    claim = claims().get(NAME)
    try:
        with Remote(config.url, config.token) as remote:
            key = SigningKey.load(config.signing_key)
            answer = publish_bundle(remote, path, key, claim=claim.commit_ref if claim else None)
    except CacheSvcError as error:
        return {"error": error.code, "message": error.message}
    if claim is not None:
        claim.published()
    return {"revision": answer.revision, "created": answer.created}


def forking():
    child = os.fork()
    if child == 0:
        sys.exit(0)
    return {"status": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}


def attaching():
    again = cachesvc_client.attach(sys.argv[1])
    again.wait(60)
    return {"new": again is not session}


WORDS = {"attach": attaching, "call": calling, "compile": compiling, "publish": publishing, "fork": forking}
print(json.dumps({"pid": os.getpid(), "status": session.status}), flush=True)
for line in sys.stdin:
    if line.strip() == "end":
        break
    print(json.dumps(WORDS[line.strip()]()), flush=True)
