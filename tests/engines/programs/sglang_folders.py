"""Compile a function below the folders that SGLang names, and print JSON: the folders, and the report.

Usage: ``WHEEL ORDER [NAME]``. WHEEL: the folder with SGLang's package, of which nothing is imported but
``sglang.srt.environ``. NAME: publish under it. ORDER: when this program attaches to ``team/sglang``, *early*
or *late*: before or after SGLang names its folders. Another word: it attaches to nothing itself."""

import json
import os
import sys
import types

wheel, order, publish = (*sys.argv[1:], "")[:3]
if order == "early":
    import cachesvc_client

    cachesvc_client.attach("team/sglang")
package = types.ModuleType("sglang")
package.__path__ = [f"{wheel}/sglang"]
sys.modules["sglang"] = package
from sglang.srt.environ import redirect_third_party_caches  # noqa: E402

redirect_third_party_caches()
if order == "late":
    import cachesvc_client

    cachesvc_client.attach("team/sglang")

import torch  # noqa: E402

import cachesvc_client  # noqa: E402
from cachesvc_client.kinds import VARIABLES  # noqa: E402
from cachesvc_client.wire.codec import plain  # noqa: E402


def function(value):
    """Compute something."""
    return torch.sin(value) * 2


result = torch.compile(function)(torch.ones(8))
if publish:
    cachesvc_client.publish(publish, target="function")
whole = plain(cachesvc_client.report())
answer = {name: whole[name] for name in ("state", "reasons", "observed")}
folders = {name: os.environ[name] for name in VARIABLES if name in os.environ}
print(json.dumps({**answer, "folders": folders, "right": bool((result == torch.ones(8).sin() * 2).all())}))
