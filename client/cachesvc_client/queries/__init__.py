"""Ask a registry what commands, the web page and warm runs want to know of names and entries."""
