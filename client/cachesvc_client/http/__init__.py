"""HTTP to a registry.

Others import `registry`, which has its routes. `exchange` makes one call (deadline, retries, versions of the
API), `downloads` gets packs and `uploads` reads what is sent; `connection`, `proxy`, `breaker`, `timed` and
`origin` are what these stand on.

Everything that goes wrong leaves as a ``CacheSvcError``; no socket, TLS or HTTP error does. The registry is
not trusted here: answers are bounded before they are parsed, and the token goes to the registry's own origin
only, over TLS or loopback.

Standard library only: a service's image gets no HTTP package from us (ADR 27).
"""
