"""Decide whose signatures count: the trust metadata, signers, trusted publishers and provenance."""
