"""Store who may do what: tokens, sessions, signers, publishers and the trust metadata."""
