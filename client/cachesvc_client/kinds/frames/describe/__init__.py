"""Words and digests of code, objects, settings and process groups, equal in every process."""
