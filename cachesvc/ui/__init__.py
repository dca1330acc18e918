"""The web page of operators: what the registry holds and what it saved, as HTML that needs no script."""
