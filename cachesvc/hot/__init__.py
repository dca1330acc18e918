"""Keep short-lived hints. Their loss costs time, never truth."""
