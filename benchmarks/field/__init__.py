"""Try every cache for torch.compile with the same restarts, hosts and differences."""
