"""Digests code and values of an application, alike in every process."""
