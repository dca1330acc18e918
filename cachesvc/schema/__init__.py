"""Define the records that only operators and builders send and get; clients need none of them."""
