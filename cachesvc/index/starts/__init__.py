"""Store what starts of services reported: outcomes, environments and nodes."""
