"""Holds the commands of ``cachesvc-client``: `cli` parses them, and one module runs each command or pair.

A service that attaches needs none of these modules.
"""
