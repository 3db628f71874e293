"""Nodes in one event loop with virtual time: a network and a disk in memory, one seed."""
