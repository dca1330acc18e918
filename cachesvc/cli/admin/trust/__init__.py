"""``cachesvc admin trust | signers | publishers``: whose signatures count, and for what."""
