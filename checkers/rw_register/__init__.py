"""Transactions that read and write registers."""
