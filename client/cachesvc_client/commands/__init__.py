"""The commands of ``cachesvc-client``: `cli` parses them, and a module for each command or pair does them.

A service that attaches needs none of these modules.
"""
