"""What is in deploy/: rendered, linted and, where no container engine is needed, run."""
