"""The schema that client and server share: digests, names, errors, records, factors.

Standard library only: it is imported by GPU images, by the registry and by the pure
rules of ``cachesvc.domain`` alike. Parse at the edge: past it a bad value cannot exist.
"""
