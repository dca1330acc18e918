"""Open a session without a registry, and pack what it compiled into a signed bundle."""

from pathlib import Path

from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.config.settings import Config
from cachesvc_client.process.process import process
from cachesvc_client.publication.build_bundle import Build, Draft, build_bundle
from cachesvc_client.session.sessions import open_local
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.records import Workload
from cachesvc_client.wire.names import Name, Target

config = Config.read()


def open_session():
    return open_local(config)


def seal(session, out: str, key: str, name: str) -> None:
    _, fingerprint = process().prepare(config, session.result)
    draft = Draft(
        name=Name.parse(name),
        target=Target("small/float32/default"),
        fingerprint=process().output.built_for(fingerprint),
        workload=Workload(script=Digest.of(b"small"), dtype="float32"),
        scopes=process().output.scopes(),
        keys=process().output.key_facts(),
        asked=process().output.asked.facts(),
        build=Build(measured={"first_call": 10.0}),
    )
    build_bundle(session.capture(), draft, SigningKey.load(Path(key)), Path(out))
