"""Reads the configuration of a process, and the login file of a user."""
