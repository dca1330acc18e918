"""Say how answers are printed: tables, listings and JSON, and errors in one line."""
