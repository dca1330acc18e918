"""Connects cachesvc with frameworks. Nothing imports a module here but the application that uses it."""
