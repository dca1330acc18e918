"""Start ``kserve_server.py``, wait until it is ready, ask it once, and end it by SIGTERM after its answer.

Print the report in its answer as JSON, with how it ended. With ANOTHER_MODEL the request compiles a second
model."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

_SECONDS = 400


def ask(url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the JSON at a URL; of a request with a body, the JSON of its answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
        return json.loads(answer.read())


def wait_until_ready(url: str, server: subprocess.Popen[bytes]) -> list[str]:
    """Return what the server answered until it was ready, each answer once."""
    seen, end = dict[str, None](), time.monotonic() + _SECONDS
    while time.monotonic() < end and server.poll() is None:
        try:
            seen["ready" if ask(f"{url}/v2/health/ready").get("ready") else "not ready"] = None
        except (OSError, urllib.error.URLError):
            seen["no answer"] = None
        if "ready" in seen:
            return [*seen]
        time.sleep(0.1)
    raise AssertionError(f"the server is not ready; it ended with {server.poll()}")


def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, str(Path(__file__).with_name("kserve_server.py")), str(port)]
    with subprocess.Popen(command, stdout=sys.stderr) as server:
        try:
            readiness = wait_until_ready(url := f"http://127.0.0.1:{port}", server)
            body = {"instances": [[float(number) for number in range(16)]]}
            body |= {"another_model": True} if os.environ.get("ANOTHER_MODEL") else {}
            answer = ask(f"{url}/v1/models/model:predict", body)
            server.send_signal(signal.SIGTERM)
            code = server.wait(60)
        finally:
            server.kill()
    facts = {"readiness": readiness, "code": code, "predictions": answer["predictions"]}
    print(json.dumps({**answer["report"], **facts}), flush=True)


if __name__ == "__main__":
    main()
