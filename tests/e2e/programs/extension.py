"""Load an extension and print the outcome as JSON: PROJECT [BUNDLE|- [KEY OUT]] [--flag FLAG].

PROJECT holds ``ext.cpp`` and ``include/scale.h``. ``BUNDLE``: the bundle to restore, ``-`` for none. With
``KEY OUT``, the files of the build are packed and signed into ``OUT``. ``--inline``: load by ``load_inline``
from source texts. ``--changed``: load another source under the same name afterwards."""

import argparse
import json
from pathlib import Path

import short_life

import cachesvc_client
from cachesvc_client.config.settings import Config
from cachesvc_client.process.process import process
from cachesvc_client.session.sessions import open_local

parser = argparse.ArgumentParser()
parser.add_argument("project", type=Path)
parser.add_argument("bundle", nargs="?", default="-")
parser.add_argument("pack", nargs="*")
parser.add_argument("--flag", action="append", default=[])
parser.add_argument("--changed", action="store_true")
parser.add_argument("--inline", action="store_true")
options = parser.parse_args()

local = options.bundle == "-"
session = open_local(Config.read()) if local else cachesvc_client.attach(bundle=options.bundle)

from torch.utils import cpp_extension  # noqa: E402


def load(source):
    return cpp_extension.load(
        "scaled",
        [str(options.project / source)],
        extra_cflags=options.flag or None,
        extra_include_paths=[str(options.project / "include")],
    )


def inline():
    return cpp_extension.load_inline(
        "inlined", "at::Tensor scaled(at::Tensor x) { return x * 6; }", functions=["scaled"]
    )


def factor(module):
    import torch

    return int(module.scaled(torch.ones(1))) if options.inline else module.factor()


modules = [inline()] if options.inline else [load("ext.cpp"), load("ext.cpp")]
if options.changed:
    modules += [load("other.cpp"), load("ext.cpp")]
report = cachesvc_client.report()
if options.pack:
    from cachesvc_client.bundle.seal import SigningKey
    from cachesvc_client.publication.build_bundle import Draft, build_bundle
    from cachesvc_client.wire.digest import Digest
    from cachesvc_client.wire.manifest.records import Workload
    from cachesvc_client.wire.names import Name, Target

    draft = Draft(
        name=Name.parse("team/extension"),
        target=Target("extension"),
        fingerprint=process().fingerprint,
        workload=Workload(script=Digest.of(b"extension")),
        scopes=process().output.scopes(),
    )
    build_bundle(session.capture(), draft, SigningKey.load(Path(options.pack[0])), Path(options.pack[1]))
print(
    json.dumps(
        {
            "factors": [factor(module) for module in modules],
            "names": [module.__name__ for module in modules],
            "places": [module.__file__ for module in modules],
            "captured": [f"{file.kind}/{file.path}" for file in session.capture()],
            "scopes": process().output.scopes(),
            "builds": report.observed.counts.get("torch_extensions", {}).get("builds", 0),
            "kinds": {name: [work.compilations, work.seconds] for name, work in report.kinds.items()},
            "state": report.state,
            "reasons": report.reasons,
            "status": session.status,
        }
    )
)
short_life.end()
