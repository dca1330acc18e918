"""Define what is signed of a revision: its files, who built it from what, and what it was made with."""
