"""Have FlashInfer load the module of ``silu_and_mul``, without a launch, and print JSON: where its library is
and the report.

Arguments are NAME=VALUE. ``publish``: publish afterwards, under this name."""

import json
import sys
from pathlib import Path


def loaded():
    """Return the library of the module that this process has loaded."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted({line.split()[-1] for line in lines if line.endswith("/silu_and_mul.so")})


def report():
    """Return the report of this process."""
    import cachesvc_client
    from cachesvc_client.wire.codec import plain

    whole = plain(cachesvc_client.report())
    return {name: whole[name] for name in ("state", "reasons", "observed", "kinds", "compared")}


def main():
    """Load the module."""
    options = dict(argument.split("=", 1) for argument in sys.argv[1:])
    from flashinfer.jit import activation

    module = activation.gen_act_and_mul_module("silu").build_and_load()
    answer = {"function": bool(module.silu_and_mul), "loaded": loaded()}
    if "publish" in options:
        import cachesvc_client

        cachesvc_client.publish(options["publish"], target="modules")
    print(json.dumps({**answer, **report()}), flush=True)


if __name__ == "__main__":
    main()
