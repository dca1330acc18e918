"""Define forms of programs: each is a function that returns tensors, alike in every process."""
