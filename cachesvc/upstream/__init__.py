"""What a mirror asks of the registry that it mirrors, by HTTP."""
