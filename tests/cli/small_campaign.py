"""A simulated plan of some seconds, for campaigns of few cells."""

from __future__ import annotations

PLAN = """
[cluster]
provider = "sim"
nodes = 3
[drive]
duration_s = 3.0
rate_per_s = 30.0
[nemesis]
first_s = 0.5
hold_s = 0.5
quiet_s = 0.5
[check]
min_ok = 5
"""
BUGGY = f'{PLAN}[system]\nbugs = ["ack-before-quorum"]\n'
