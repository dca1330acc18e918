"""The service of the quick start: it compiles the model, answers one request, and says how long that took.

It does not know cachesvc: `cachesvc run` attaches it from outside, and with CACHESVC_LOG=info the log says
what came of it.
"""

import time

import torch
from models import classifier

torch.manual_seed(0)  # the same weights and the same request at every start
model = torch.compile(classifier())
request = torch.randint(0, 5000, (1, 64))

begin = time.perf_counter()
with torch.no_grad():
    answer = model(request)
print(f"first answer after {time.perf_counter() - begin:.1f} s: class {int(answer.argmax())}")
