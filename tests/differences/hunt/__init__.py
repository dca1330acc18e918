"""A hunt for false hits: facts of the program and of its libraries that differ between builder and service."""
