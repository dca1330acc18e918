"""Test the files of deploy/: they are rendered, linted and, if no container engine is needed, run."""
