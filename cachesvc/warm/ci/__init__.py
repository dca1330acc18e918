"""Shows reports of `warm` as CI systems have it: annotations, outputs, comments, and files of other forms."""
