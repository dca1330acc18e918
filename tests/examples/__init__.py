"""Test the examples of kinds and stores in distributions of their own."""
