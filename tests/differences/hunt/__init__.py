"""Hunt for false hits: facts of a program and of its libraries that differ between builder and service."""
