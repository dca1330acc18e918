"""Make and sign trust metadata in TUF's formats, by python-tuf's metadata API."""
