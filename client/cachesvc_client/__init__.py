"""Restores prebuilt torch.compile and Triton artifacts, so that a fresh process does not compile."""

__version__ = "0.1.0"
