"""Judges claims where they are made: every message against disks, clocks and leases as they are."""
