"""Compile C with cffi as a service does, and print the outcome as JSON: NAME [SOURCE] [publish]."""

import json
import sys

import short_life

import cachesvc_client

cachesvc_client.attach(sys.argv[1])

import cffi  # noqa: E402

source = sys.argv[2] or "#include <math.h>\nstatic double twice(double x) { return floor(x) * 2; }"
ffi = cffi.FFI()
ffi.cdef("double twice(double);")
library = ffi.verify(source)
answer = library.twice(4.5)
published = cachesvc_client.publish(target="service").created if "publish" in sys.argv[3:] else None
report = cachesvc_client.report()
print(
    json.dumps(
        {
            "answer": answer,
            "place": ffi.verifier.modulefilename,
            "published": published,
            "state": report.state,
            "reasons": report.reasons,
            "counts": report.observed.counts,
            "compilations": report.compilations,
            "cost": {name: work.compilations for name, work in report.kinds.items() if work.compilations},
            "loaded": "cachesvc_kind_cffi" in sys.modules,
        }
    )
)
short_life.end()
