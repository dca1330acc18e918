"""Build the images of the project and run them as containers, without a daemon.

`make test-containers` runs these tests: as root, because another user may not mount a read-only root."""
