"""Reads the proxies that the environment names."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from ..wire.errors import InvalidRequest, Unavailable
from .origin import Origin


@dataclass(frozen=True, slots=True)
class Proxy:
    """Describes a proxy. ``headers``: its credentials, if its URL has some; ``variable``: the one that names
    it."""

    host: str
    port: int
    headers: Mapping[str, str]
    variable: str

    def __str__(self) -> str:
        return f"the proxy {self.host}:{self.port} of {self.variable}"

    def refusal(self, status: int, target: str) -> Unavailable:
        """Return the error of an answer that only the proxy can have given."""
        hint = {
            407: f"put its user and password into {self.variable}: http://user:password@host:port",
            403: f"have it permit {target}, or add the host to no_proxy",
        }.get(status, "")
        return Unavailable(f"{self}: status {status} for {target}", hint)


def proxy_for(origin: Origin) -> Proxy | None:
    """Returns the proxy of ``http_proxy``, ``https_proxy``, ``all_proxy`` and ``no_proxy``, which are read as
    curl and urllib read them. Loopback has no proxy: a token over plain HTTP would leave the machine.

    Raises ``InvalidRequest`` that names the variable, for a proxy that is not an HTTP one.
    """
    if origin.loopback or not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    import urllib.request  # 30 ms, for those who have a proxy

    proxies = urllib.request.getproxies_environment()
    kind = origin.scheme if proxies.get(origin.scheme) else "all"
    url = proxies.get(kind)
    if not url or urllib.request.proxy_bypass_environment(origin.netloc, proxies):  # type: ignore[attr-defined]
        return None
    return _parse(url, _variable(f"{kind}_proxy", url), origin)


def _variable(name: str, url: str) -> str:
    """Return the variable as the environment spells it; small letters win, as for urllib."""
    spelled = [key for key, value in os.environ.items() if key.lower() == name and value == url]
    return name if name in spelled or not spelled else spelled[0]


def _parse(url: str, variable: str, origin: Origin) -> Proxy:
    fix = f"set {origin.scheme}_proxy to http://[user:password@]host:port, or add {origin.host} to no_proxy"
    scheme = url.partition("://")[0].lower() if "://" in url else "http"
    if scheme != "http":
        what = "a SOCKS proxy" if scheme.startswith("socks") else f"a proxy of {scheme[:20]}://"
        raise InvalidRequest(f"{variable}: {what}, and cachesvc speaks to proxies of http:// alone", fix)
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port or 80
        if not parts.hostname:
            raise ValueError
    except ValueError:
        raise InvalidRequest(f"{variable}: no address of a proxy", fix) from None
    headers = {}
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Proxy-Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
    return Proxy(parts.hostname, port, headers, variable)
