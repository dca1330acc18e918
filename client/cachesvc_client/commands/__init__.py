"""What ``__main__`` runs; each module is one command or a pair. A service that attaches needs none of them."""
