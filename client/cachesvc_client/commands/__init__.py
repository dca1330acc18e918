"""What ``__main__`` runs, a module for each command or pair. A service that attaches needs none of it."""
