"""Show what came of a run, and read back what runs reported."""
