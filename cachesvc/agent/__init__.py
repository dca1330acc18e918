"""Keeps the store of a node warm: one process that fetches what services of the node will start from."""
