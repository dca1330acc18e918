"""Measure how an inference engine starts."""
