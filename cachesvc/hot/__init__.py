"""Short-lived hints. Losing them costs time, never truth."""
