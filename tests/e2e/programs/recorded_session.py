"""Open the session of a program that compiles, records or serves, and publish what it compiled."""

import json
import os
from pathlib import Path

import cachesvc_client
from cachesvc_client.process.process import process


def begin(what, bundle):
    """Return the session of a program that shall ``compile``, ``record`` or ``serve``. Import torch after."""
    if what == "compile":
        from cachesvc_client.config.settings import Config
        from cachesvc_client.session.sessions import open_local

        return open_local(Config.read())
    session = cachesvc_client.attach("team/frames", bundle=bundle)
    if what == "record":
        process().all_kinds.start_recording()
    return session


def publish(session, bundle, key_file, whole, name="team/frames", target="model", measured=None):
    """Write a bundle of what this process compiled, for a name and a target; ``whole``: and of what it
    restored. ``measured``: seconds that the builder took, by step."""
    from cachesvc_client.bundle.seal import SigningKey
    from cachesvc_client.config.settings import Config
    from cachesvc_client.publication.build_bundle import Build, Draft, build_bundle
    from cachesvc_client.wire.digest import Digest
    from cachesvc_client.wire.manifest.records import Workload
    from cachesvc_client.wire.names import Name, Target

    _, fingerprint = process().prepare(Config.read(), session.result)
    draft = Draft(
        name=Name.parse(name),
        target=Target(target),
        fingerprint=fingerprint,
        workload=Workload(script=Digest.of(name.encode()), dtype="float32"),
        scopes=process().output.scopes(),
        keys=process().output.key_facts(),
        asked=process().output.asked.facts(),
        build=Build(measured=measured or {}),
    )
    build_bundle(session.capture(whole=whole), draft, SigningKey.load(Path(key_file)), Path(bundle))


def with_eager(run):
    """Return what ``run()`` returns, what it returns in eager, and how often the first traced and compiled.
    Import torch before."""
    import torch

    before = process().output.observer.snapshot()
    answer = run()
    after = process().output.observer.snapshot()
    torch.compiler.set_stance("force_eager")
    eager = run()
    torch.compiler.set_stance("default")
    traces = after.torch.traces - before.torch.traces
    return answer, eager, {"traces": traces, "compilations": after.compilations - before.compilations}


def in_a_child(run):
    """Return what ``run()`` returns in a child of this process; that it failed, if the child ends before."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, json.dumps(run()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"failed": True}
