"""The capabilities of local processes and their links on this machine, found by trying."""

from __future__ import annotations

import sys

from clusters.providers.process import procfs
from clusters.providers.process.child import Child, launch
from clusters.providers.process.proxy import Mesh
from harness.errors import HarnessError
from harness.protocols.cluster import Capability

_TRIAL_DELAY_S = 0.05


async def found_capabilities() -> frozenset[Capability]:
    """Those that work on a process and on a link that are gone on return."""
    found: list[Capability] = []
    if await _signals_work():
        # Data of nodes are files of this user, in a directory that this process has made.
        found += [Capability.KILL, Capability.PAUSE, Capability.WIPE]
    if await _cuts_work():
        found += [Capability.PARTITION, Capability.ONE_WAY_PARTITION]
    if await _delays_work():
        found += [Capability.DELAY]
    return frozenset(found)


async def _signals_work() -> bool:
    """Whether a process of ours can be killed and ``/proc`` shows it.

    It waits on a pipe of ours, so that it ends even where we die on the way.
    """
    try:
        process = launch((sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"))
        found = procfs.look(process.pid)
    except OSError:
        return False
    if found is None:
        return False
    try:
        await Child(node="a trial", identity=found.identity, process=process).kill()
    except HarnessError:
        return False
    return procfs.find(found.identity) is None


async def _cuts_work() -> bool:
    """Whether a cut stops bytes in one direction only, and healing lets them pass again."""
    mesh, link, back = Mesh(("a", "b")), ("a", "b"), ("b", "a")
    try:
        before = await mesh.probe((link, back))
        mesh.cut((link,))
        during = await mesh.probe((link, back))
        mesh.cut(())
        after = await mesh.probe((link, back))
    except (OSError, HarnessError):
        return False
    whole = {link: True, back: True}
    return before == after == whole and during == {link: False, back: True}


async def _delays_work() -> bool:
    """Whether delaying a link makes a round trip longer, and ending that makes it short again."""
    mesh, link = Mesh(("a", "b")), ("a", "b")
    try:
        mesh.delay({link: _TRIAL_DELAY_S})
        slow = (await mesh.measure((link,)))[link].round_trip_s
        mesh.delay({})
        fast = (await mesh.measure((link,)))[link].round_trip_s
    except (OSError, HarnessError):
        return False
    return slow is not None and fast is not None and fast < _TRIAL_DELAY_S <= slow
