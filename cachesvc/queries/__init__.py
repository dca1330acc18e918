"""Ask a registry what operators, the web page and warm runs want to know: coverage, plans, inventory."""
