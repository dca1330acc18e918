"""Observe what a program compiles, for `cachesvc init`. ``path`` is the folder on PYTHONPATH."""
