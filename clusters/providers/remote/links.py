"""Whether what one machine sends reaches another, by sending.

Every destination listens, then every source sends, then the listeners are told that it is over:
nobody waits for a fixed time, and a slow machine is not mistaken for a cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from clusters.providers.remote.lanes import Lane, together
from clusters.providers.remote.session import Running, Session
from harness.cluster import Link
from harness.errors import HarnessError

LISTEN_LIMIT_S = 20.0  # longer than sending, which happens meanwhile
SEND_LIMIT_S = 8.0
STEP_LIMIT_S = LISTEN_LIMIT_S + 5.0

_LISTEN = """
import select, socket, sys
listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
listener.bind((sys.argv[1], 0))
print(listener.getsockname()[1], flush=True)
heard, over = [], False
while True:
    watched = [listener] if over else [listener, sys.stdin]
    ready = select.select(watched, [], [], 0.15 if over else None)[0]
    if not ready:
        break
    if listener in ready:
        said = listener.recv(256).decode("ascii", "replace")
        if said not in heard:
            heard.append(said)
    else:
        over = True
for said in heard:
    print(said)
"""

# Three rounds: one datagram may be lost to a full queue, three 20 ms apart are not.
_SEND = """
import socket, sys, time
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(3):
    for target in sys.argv[2:]:
        host, _, port = target.rpartition(":")
        try:
            sender.sendto(sys.argv[1].encode("ascii"), (host, int(port)))
        except OSError:
            pass
    time.sleep(0.02)
"""


class Listener:
    """A receiver of datagrams on a machine."""

    def __init__(self, session: Session, address: str, script: str = _LISTEN) -> None:
        """Start listening on ``address``; returns when it does. ``script`` tells its port first,
        and what it heard when its input ends.
        """
        self._running: Running = session.open(
            ["python3", "-I", "-c", script, address],
            limit_s=LISTEN_LIMIT_S,
            name="listening for probes",
        )
        port = self._running.line()
        if not port.isdigit():
            self._running.finish()
            raise HarnessError(f"{session.node}: the probe's listener named no port (got {port!r})")
        self.target = f"{address}:{port}"

    def heard(self) -> tuple[str, ...]:
        """Stop listening; the words that say what arrived."""
        return tuple(self._running.finish().decode("ascii", "replace").split())


def send(session: Session, token: str, targets: Iterable[str]) -> None:
    """Send ``token`` to every ``host:port`` of ``targets``; returns when all is sent."""
    session.run(
        ["python3", "-I", "-c", _SEND, token, *targets],
        limit_s=SEND_LIMIT_S,
        name="sending probes",
    )


@attrs.frozen(kw_only=True)
class Station:
    """A machine that can be asked to listen and to send."""

    lane: Lane
    session: Session
    address: str


async def probe(
    stations: Mapping[str, Station], wanted: tuple[Link, ...], label: str
) -> dict[Link, bool]:
    """Whether datagrams pass each of ``wanted``; links of machines not in ``stations`` don't.

    ``label`` tells this probe's datagrams from another's. Raises ``HarnessError`` when a machine
    can't be asked: that is no answer about a link.
    """
    tried = [(a, b) for a, b in wanted if a in stations and b in stations]
    destinations = sorted({destination for _, destination in tried})
    opened = await together(
        stations[name].lane.call(
            "listening for probes",
            STEP_LIMIT_S,
            Listener,
            stations[name].session,
            stations[name].address,
        )
        for name in destinations
    )
    listeners = dict(zip(destinations, opened, strict=True))
    await together(
        stations[name].lane.call(
            "sending probes",
            STEP_LIMIT_S,
            send,
            stations[name].session,
            f"{label}/{name}",
            [listeners[to].target for source, to in tried if source == name],
        )
        for name in sorted({source for source, _ in tried})
    )
    tokens = await together(
        stations[name].lane.call("hearing probes", STEP_LIMIT_S, listeners[name].heard)
        for name in destinations
    )
    heard = dict(zip(destinations, tokens, strict=True))
    return {(a, b): f"{label}/{a}" in heard.get(b, ()) for a, b in wanted}
