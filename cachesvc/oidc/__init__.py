"""Verify tokens of OpenID Connect issuers: their keys, and what a token says."""
