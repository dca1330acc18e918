"""Define what a client and a registry, or two nodes, say to each other."""
