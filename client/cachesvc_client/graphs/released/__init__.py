"""Compares the loaded torch with torch as it was released."""
