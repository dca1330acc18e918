"""Store what the index knows of the blobs, and of uploads that are under way."""
