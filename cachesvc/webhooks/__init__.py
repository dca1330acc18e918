"""Send events to the receivers that administrators name."""
