"""Do what runs in the process where the user's model is compiled, replayed or observed."""
