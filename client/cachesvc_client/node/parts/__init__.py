"""The parts of the node store: packs, kept answers, marks of revisions, private folders."""
