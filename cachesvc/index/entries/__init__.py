"""Store entries, their revisions, what they descend from, and what was withdrawn."""
