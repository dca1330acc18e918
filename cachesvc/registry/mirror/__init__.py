"""Serve what another registry or another node has: a mirror of an upstream, the heads for one, and peers."""
