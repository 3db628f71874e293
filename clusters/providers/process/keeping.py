"""Handing the links of a cluster to a process that outlives the controller."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import msgspec

from clusters.providers.process import keeper
from clusters.providers.process.child import Child, spawn
from clusters.providers.process.ledger import Ledger
from clusters.providers.process.proxy import Mesh
from harness.history.files import write_atomically

LINKS = "links"
"""The name of the process among those of the nodes."""


async def keep_links(mesh: Mesh, state_dir: Path, ledger: Ledger) -> Child:
    """Start the process that carries what ``mesh`` carried, through the same listeners.

    Connections that are open now end with the controller; nodes dial again. Raises
    ``HarnessError``.
    """
    listeners = tuple(
        keeper.Listener(fd=proxy.listens, destination=proxy.destination) for proxy in mesh.proxies
    )
    file = state_dir / "links.json"
    await asyncio.to_thread(write_atomically, file, msgspec.json.encode(listeners))
    return await spawn(
        LINKS,
        (sys.executable, "-P", "-m", keeper.__name__, str(file)),
        env=os.environ,
        work=state_dir,
        log=state_dir / "links.log",
        ledger=ledger,
        pass_fds=tuple(one.fd for one in listeners),
    )
