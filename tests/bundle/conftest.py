"""Hypothesis without a deadline: the machines that run this are shared."""

from hypothesis import settings

settings.register_profile("shared", deadline=None)
settings.load_profile("shared")
