"""Describe builds with ninja, compilers and nvcc, for the kinds whose libraries are built so."""
