"""Where the bytes are. :mod:`.store` is what every backend guarantees, :mod:`.contract` proves it."""
