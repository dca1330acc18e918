"""The guards of a recorded frame: in words, as bytes, and over the live objects of a service."""
