"""Make the table of program forms: which start without traces, and why the others do not."""
