"""An adapter that blocks is named, and ends no other way: limits of the loop can't end it."""

from __future__ import annotations

import asyncio
import signal
import threading
import time

import pytest

from harness.conform.loop_watch import Blocked, watched


def test_what_holds_the_loop_up_is_broken_off_where_it_waits() -> None:
    async def blocking() -> None:
        with watched(asyncio.get_running_loop(), limit_s=0.5):
            threading.Event().wait(60)

    began_s = time.monotonic()
    with pytest.raises(Blocked, match=r"stood still for 0.5 s in blocking \(.*watchdog.py:\d+\)"):
        asyncio.run(blocking())

    assert time.monotonic() - began_s < 30
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


def test_a_loop_that_only_waits_is_left_alone() -> None:
    async def waiting() -> str:
        with watched(asyncio.get_running_loop(), limit_s=1.2):
            await asyncio.sleep(2)
            return "done"

    assert asyncio.run(waiting()) == "done"
