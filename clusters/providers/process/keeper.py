"""Run as a module: ``keeper FILE`` carries the links of a cluster that outlives its controller.

The listeners come from the controller, open, so that the addresses that nodes know stay true and no
dial is refused in between. Every link is whole: faults end with the run.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import sys
from pathlib import Path

import msgspec

from clusters.providers.process.child import Child, spawn
from clusters.providers.process.cleanup import Ledger
from clusters.providers.process.link_lanes import Lane
from clusters.providers.process.proxy import LinkProxy, Mesh
from harness.history.durable_files import write_atomically
from harness.protocols.cluster import Address

# The name of the process among those of the nodes.
LINKS = "links"


class Listener(msgspec.Struct, frozen=True, kw_only=True):
    """An open listener by its descriptor, and where its connections lead."""

    fd: int
    destination: Address


async def keep(listeners: tuple[Listener, ...]) -> None:
    """Carry the connections of ``listeners``, until this process is ended."""
    proxies = []
    for one in listeners:
        listener = socket.socket(fileno=one.fd)
        listener.setblocking(False)
        proxies.append(LinkProxy(Lane(), Lane(), one.destination, listener))
    await asyncio.Event().wait()


def main(argv: list[str]) -> None:
    """Keep the listeners that the file ``argv[0]`` lists."""
    # Each connection takes two descriptors, and no controller is left to count them.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    listeners = msgspec.json.decode(Path(argv[0]).read_bytes(), type=tuple[Listener, ...])
    asyncio.run(keep(listeners))


async def keep_links(mesh: Mesh, state_dir: Path, ledger: Ledger) -> Child:
    """Start the process that carries the links of ``mesh`` from now on, through the same listeners.

    Connections that are open now end with the controller; nodes dial again. Raises
    ``HarnessError``.
    """
    listeners = tuple(
        Listener(fd=proxy.listens, destination=proxy.destination) for proxy in mesh.proxies
    )
    file = state_dir / "links.json"
    await asyncio.to_thread(write_atomically, file, msgspec.json.encode(listeners))
    return await spawn(
        LINKS,
        # -P: with -m Python would import from the working directory before all else.
        (sys.executable, "-P", "-m", __name__, str(file)),
        env=os.environ,
        work=state_dir,
        log=state_dir / "links.log",
        ledger=ledger,
        pass_fds=tuple(one.fd for one in listeners),
    )


if __name__ == "__main__":
    main(sys.argv[1:])
