"""Have FlashInfer load a module, and print the report. `cachesvc warm` runs it as a script target."""

import json

from flashinfer.jit import activation
from flashinfer_modules import report

assert activation.gen_act_and_mul_module("silu").build_and_load().silu_and_mul
print(json.dumps(report()), flush=True)
