"""Listen, hold TLS, and bound the connections of ``cachesvc serve``."""
