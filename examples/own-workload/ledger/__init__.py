"""Clients that write numbers, and read them back."""
