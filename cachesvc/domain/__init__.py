"""Decide by pure rules: who may do what, which revision follows which, what is kept. Time is an argument."""
