"""Connects cachesvc with frameworks, one module for each."""
