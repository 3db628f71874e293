"""Histories of lists as arrays, and what can be inferred from them key by key."""
