"""Run a service: attach, compile, answer once, and print the report as JSON on the last line.

Arguments are NAME=VALUE. ``bundle``: attach to a file. ``name``: attach to a name. ``when``: before
(default), after (import torch), late (after a compile), twice, fork, auto (import cachesvc_client.auto),
never, or compile (no attach: `prime`, `wait`, then cachesvc_client.compile with the name). ``small``: a
function instead of the model. ``grad``: with gradients, of the input too. ``threads``: the number of torch's
threads. ``more``: further batches, each of its own shape. ``publish``: publish afterwards. ``quiet``: wait
until the pause of the collector ends. ``expect``: a saved output to compare with."""

import gc
import json
import os
import sys
import time

import short_life

numbers = gc.get_threshold()
options = dict(argument.split("=", 1) for argument in sys.argv[1:])
when = options.get("when", "before")


def attach():
    import cachesvc_client

    kwargs = {"bundle": options["bundle"]} if "bundle" in options else {"name": options.get("name")}
    return cachesvc_client.attach(**kwargs)


if when in ("before", "twice", "fork", "reset"):
    attach()

if when == "auto":
    import cachesvc_client.auto

import torch  # noqa: E402

if when == "late":
    with torch.no_grad():
        torch.compile(lambda x: x.cos() + 1)(torch.ones(8))
if when in ("after", "late", "twice"):
    attach()

from model import inputs, make  # noqa: E402

import cachesvc_client  # noqa: E402
from cachesvc_client.environment.model_hash import model_hash  # noqa: E402
from cachesvc_client.hooks import counters  # noqa: E402
from cachesvc_client.process.process import process  # noqa: E402
from cachesvc_client.wire.codec import plain  # noqa: E402

if when == "fork" and (child := os.fork()):
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

observer = counters.start(audit=True)
model = (lambda x: x.cos() * 2 + 1) if "small" in options else make(seed=int(options.get("seed", 0)))
batch = inputs(int(options.get("batch", 4))).requires_grad_("grad" in options)
if "threads" in options:
    torch.set_num_threads(int(options["threads"]))
with torch.set_grad_enabled("grad" in options):
    eager = model(batch)
    if when == "compile":
        cachesvc_client.prime()
        primed = "torch._inductor.compile_fx" in sys.modules
        compiled = cachesvc_client.compile(model, name=options["name"], dynamic=False)
        primed = primed and cachesvc_client.wait(60)
    else:
        compiled, primed = torch.compile(model, dynamic=False if "more" in options else None), None
    output = compiled(batch)
    for rows in options.get("more", "").split():
        compiled(inputs(int(rows)))
    if when == "reset":
        torch._dynamo.reset()
        output = torch.compile(model)(batch)
if "publish" in options:
    cachesvc_client.publish()
collector = process().collector
for _ in range(100 if "quiet" in options else 0):
    if not collector.active:
        break
    time.sleep(0.1)
report = cachesvc_client.report()
answer = {
    "state": report.state,
    "reasons": list(report.reasons),
    "seconds": report.seconds,
    "kinds": plain(report.kinds),
    "differences": [str(difference) for difference in report.compared.key_differences],
    "explaining": process().output.components.seconds,
    "saved": report.saved,
    "observed": plain(observer.snapshot()),
    "eager_difference": float((output - eager).detach().abs().max()),
    "bytes_moved": report.bytes_moved,
    "installed": len(report.revisions),
    "torch": torch.__file__,
    "level": os.environ.get("TORCHINDUCTOR_CPP_MARCH", ""),
    "primed": primed,
    "collector": {"held": collector.seconds, "numbers": gc.get_threshold(), "before": numbers},
    "status": cachesvc_client.status(),
    "compiled": f"{type(compiled).__module__}.{type(compiled).__qualname__}",
    "registered": process().output.models == [model_hash(model)],
}
if "expect" in options:
    answer["same_as_builder"] = bool(torch.equal(output, torch.load(options["expect"])))
print(json.dumps(answer))
short_life.end()
