"""Pure rules: who may do what, which revision follows which, what is kept. No I/O; time is an argument."""
