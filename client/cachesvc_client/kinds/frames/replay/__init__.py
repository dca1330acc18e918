"""What a service does: it replays recorded frames in the place of traces."""
