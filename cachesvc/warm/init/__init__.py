"""Make a spec of what a program compiled when it ran under observation: `cachesvc init`."""
