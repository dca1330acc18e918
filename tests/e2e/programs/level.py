"""Compile functions in this process: ``level.py [SETTING=VALUE…]``.

The settings of Inductor's C++ code are set for the second function alone. Prints as JSON why the code is not
known to be built for the level, the flags of the entry, its host kernels, and the 16-bit types in the keys of
each function."""

import json
import sys

import sealed
import short_life

session = sealed.open_session()

import torch  # noqa: E402
from torch._inductor import config  # noqa: E402

from cachesvc_client.process.process import process  # noqa: E402


def plain(x):
    return torch.softmax(x.cos() * 2 + 1, -1) @ x


def short(x):
    return (x.to(torch.bfloat16) @ x.to(torch.bfloat16)).relu()


def types():
    found = {
        components.get("mkldnn_dtypes", "none") for components in process().output.components.missed.values()
    }
    process().output.components.missed.clear()
    return sorted(found)


settings = dict(text.split("=", 1) for text in sys.argv[1:])
values = {f"cpp.{one}": int(text) if text.isdigit() else text for one, text in settings.items()}
batch = torch.linspace(0, 1, 64 * 64).reshape(64, 64)
answer = {}
with torch.no_grad():
    torch.compile(plain)(batch)
    answer["plain"] = types()
    with config.patch(values):
        torch.compile(short)(batch)
        answer["short"] = types()
    with torch.autocast("cpu"):
        torch.compile(lambda x: plain(x) + 1)(batch)
        answer["autocast"] = types()
_, fingerprint = process().prepare(sealed.config, session.result)
answer |= {
    "beyond": process().output.beyond_level(),
    "flags": process().output.built_for(fingerprint)["cpu_flags"],
    "kernels": [str(path) for path in process().kinds["inductor"]._used.kernels.values()],
}
print(json.dumps(answer))
short_life.end()
