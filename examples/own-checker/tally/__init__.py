"""Counters that are incremented by a read and a write, and what must hold of them."""
