"""Connects frameworks of training to cachesvc. A module here imports its framework; nothing imports a module
here but the application that uses it."""
