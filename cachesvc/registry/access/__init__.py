"""Authenticate tokens and people, and manage what they log in with."""
