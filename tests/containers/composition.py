"""Turn the services of the compose file into containers, and name each key that has no effect here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.deploy.charts import ROOT

COMPOSE = ROOT / "deploy" / "compose"
NOT_RUN = {
    "postgres": "Debian's PostgreSQL 15 runs beside the containers, with the user, password and database of"
    " the file: the program that makes them at a first start is the image's",
    "s3": "Ceph's gateway runs beside the containers, with the keys of the file: Debian has no versitygw",
}
"""Services of which the tests run something else than the image that the file names, and why."""
STAND_INS = {
    "caddy": "Caddy 2.6 of Debian for the image's 2.11",
    "redis": "redis-server 7.0 of Debian for the image's 7",
    "versity/versitygw": "Debian's chown for the image's",
}
"""Images that the tests cannot fetch, and what runs in their place, with everything else as in the file."""
NO_EFFECT = {
    "restart": "no engine runs that would start a container again",
    "ports": "clients come to the proxy's own address",
    "build": "the image is built before",
    "healthcheck": "the test runs the command itself, no engine does every some seconds",
    "depends_on": "the test starts the services in this order and waits as the conditions say",
    "deploy": "the test starts the replicas",
    "stop_grace_period": "the test stops the service with it",
}
"""Keys of services that say something to the engine, and who does it here."""
_OPTIONS = {"image", "user", "tmpfs", "environment", "read_only", "cap_drop", "cap_add", "security_opt"}
_OPTIONS |= {"command", "entrypoint", "volumes", "network_mode"}


def unknown_keys(services: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Return the keys of services for which neither an option nor a line above exists."""
    known = _OPTIONS | set(NO_EFFECT)
    return {f"{name}.{key}" for name, service in services.items() for key in service if key not in known}


def options(service: Mapping[str, Any], files: Mapping[str, Path], network: list[str]) -> list[str]:
    """Return podman's options for a service. ``files``: those of this machine for paths of the compose file;
    ``network``: the options of its network."""
    words = ["--passwd=false", *(["--network", "none"] if service.get("network_mode") == "none" else network)]
    for name, value in service.get("environment", {}).items():
        words += ["--env", f"{name}={value}"]
    if "user" in service:
        words += ["--user", service["user"]]
    if service.get("read_only"):
        words += ["--read-only", "--read-only-tmpfs=false"]
    for key, option in (("cap_drop", "--cap-drop"), ("cap_add", "--cap-add"), ("tmpfs", "--tmpfs")):
        for value in service.get(key, []):
            words += [option, value]
    for value in service.get("security_opt", []):
        words += ["--security-opt", value.removesuffix(":true")]
    for volume in service.get("volumes", []):
        source, _, target = volume.partition(":")
        words += ["-v", f"{files.get(source, source)}:{target}"]
    if service.get("entrypoint"):
        words += ["--entrypoint", json.dumps(service["entrypoint"])]
    return words
