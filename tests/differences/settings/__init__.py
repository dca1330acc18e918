"""Try the settings of the torch that is installed, contexts, and changes of a few probes."""
