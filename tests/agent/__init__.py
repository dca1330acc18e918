"""Tests of the agent that keeps a node's store warm."""
