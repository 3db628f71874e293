"""What a look at this machine found: the rows of ``firedrill doctor``."""

from __future__ import annotations

import msgspec


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at: ``found`` says what is there, ``remedy`` what adds what is not.

    ``remedy`` is empty where ``ok`` is true or nothing can be done.
    """

    name: str
    ok: bool
    found: str
    remedy: str = ""
