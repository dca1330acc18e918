"""Speaks HTTP with a registry.

Other packages import `registry`, which has its routes. `exchange` makes one call (deadline, retries, versions
of the API), `downloads` downloads packs and `uploads` reads what is sent; `connection`, `proxy`, `breaker`,
`timed`, `links` (where links may lead) and `origin` are the layers below.

Every failure leaves this package as a ``CacheSvcError``; no socket, TLS or HTTP error does. The registry is
not trusted here: answers are bounded before they are parsed, and the token goes to the registry's own origin
only, over TLS or loopback.

Standard library only: this client installs no HTTP package into a service's image (ADR 21).
"""
