"""Serve the registry over HTTP: each route parses, authorises, calls one use case and renders. The records of
``wire.requests.protocol`` are the bodies."""
