"""Defines the schema that client and server share: digests, names, errors, records, factors.

The package imports the standard library only, because GPU images, the registry and the pure rules of
``cachesvc.domain`` import it. Types validate themselves when they are made: behind the edge of a program no
bad value exists.
"""
