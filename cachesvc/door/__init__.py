"""Decides who may send a body, and what it may take, before its first byte is read."""
