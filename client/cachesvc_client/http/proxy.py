"""Reads the proxies that the environment names."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from ..wire.errors import InvalidRequest
from .origin import Origin


@dataclass(frozen=True, slots=True)
class Proxy:
    """Describes a proxy. ``headers``: its credentials, if its URL has some."""

    host: str
    port: int
    headers: Mapping[str, str]


def proxy_for(origin: Origin) -> Proxy | None:
    """Returns the proxy of ``http_proxy``, ``https_proxy``, ``all_proxy`` and ``no_proxy``, which are read as
    curl and urllib read them. Loopback has no proxy: a token over plain HTTP would leave the machine.

    Raises ``InvalidRequest`` for a proxy that is not an HTTP one.
    """
    if origin.loopback or not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    import urllib.request  # 30 ms, for those who have a proxy

    proxies = urllib.request.getproxies_environment()
    url = proxies.get(origin.scheme) or proxies.get("all")
    if not url or urllib.request.proxy_bypass_environment(origin.netloc, proxies):  # type: ignore[attr-defined]
        return None
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError
        port = parts.port or 80
    except ValueError:
        raise InvalidRequest(
            f"{origin.scheme}_proxy: not an HTTP proxy", "expected http://[user:password@]host:port"
        ) from None
    headers = {}
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Proxy-Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
    return Proxy(parts.hostname, port, headers)
