"""Store the bytes. :mod:`.store` defines what every backend guarantees, and :mod:`.testing` checks it, and
:mod:`.schemes` opens a backend by its URL."""
