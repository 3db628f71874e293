"""What makes two findings one: the fingerprint that joins the findings of all runs."""

from __future__ import annotations

import hashlib

NO_FAULT = "no fault"
"""Stands for the fault of a finding that none explains."""
FINGERPRINT_CHARS = (
    12  # 48 bits: of a thousand findings two are alike once in half a billion stores
)


def fingerprint(*, promise: str, anomaly: str, fault: str, role: str, system: str) -> str:
    """Return what stands for a finding over all runs: equal fingerprints are one finding.

    ``promise`` is what the ``anomaly`` breaks, ``fault`` the kind of the fault that explains it (or
    ``NO_FAULT``), ``role`` the class of role of that fault's target. A release, a mode, a seed, a
    node or a partition is no part of it: a finding of two releases is one finding. The text that is
    digested never changes its form, since stores keep fingerprints for years.
    """
    text = "\0".join((promise, anomaly, fault, role, system))
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:FINGERPRINT_CHARS]
