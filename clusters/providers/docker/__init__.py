"""Nodes as containers on a private network of their own."""
