"""Store the bytes. :mod:`.store` defines what every backend guarantees, and :mod:`.contract` checks it."""
