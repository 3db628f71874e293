"""The result of checking this machine: the rows of ``firedrill doctor``."""

from __future__ import annotations

import msgspec


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One checked requirement: ``found`` describes its present state, ``remedy`` how to satisfy it.

    ``remedy`` is empty where ``ok`` is true or there is no remedy.
    """

    name: str
    ok: bool
    found: str
    remedy: str = ""
