"""Route requests: each parses, authorises, calls one use case and renders."""
