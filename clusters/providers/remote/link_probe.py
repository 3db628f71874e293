"""Measures links: many datagrams are sent over each, and most of them answered.

Loss is counted where the datagrams arrive, so it is that of one direction; the way there and back
is timed where they were sent, so no two clocks are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from clusters.providers.remote.links import STEP_LIMIT_S, Listener, Station
from clusters.providers.remote.node_threads import together
from harness.errors import HarnessError
from harness.protocols.cluster import Link, LinkQuality

# Enough that one link in ten thousand with a loss of 5 % shows less than half of it.
DATAGRAMS = 400
SEND_LIMIT_S = 10.0
# For the last answers, beyond what the links delay them.
PATIENCE_S = 0.3

# Told apart by the token; the large buffer is for a machine too busy to listen for a moment.
ECHO = """
import select, socket, sys
echo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
try:
    echo.setsockopt(socket.SOL_SOCKET, 33, 4 << 20)
except OSError:
    echo.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
echo.bind((sys.argv[1], 0))
print(echo.getsockname()[1], flush=True)
heard, over = {}, False
while True:
    watched = [echo] if over else [echo, sys.stdin]
    ready = select.select(watched, [], [], 0.15 if over else None)[0]
    if not ready:
        break
    if echo in ready:
        said, sender = echo.recvfrom(256)
        token, _, number = said.decode("ascii", "replace").rpartition(" ")
        heard.setdefault(token, set()).add(number)
        try:
            echo.sendto(said, sender)
        except OSError:
            pass
    else:
        over = True
for token, numbers in heard.items():
    print(token, len(numbers))
"""

_SEND = """
import select, socket, sys, time
token, count, patience = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
targets = [(h, int(p)) for h, _, p in (t.rpartition(":") for t in sys.argv[4:])]
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.setblocking(False)
sent, best = {}, {}
def hear(wait):
    while select.select([sender], [], [], wait)[0]:
        said, source = sender.recvfrom(256)
        began = sent.pop((source, said), None)
        if began is not None:
            took = time.perf_counter() - began
            best[source] = min(took, best.get(source, took))
        wait = 0
for number in range(count):
    said = f"{token} {number}".encode("ascii")
    for target in targets:
        sent[target, said] = time.perf_counter()
        try:
            sender.sendto(said, target)
        except OSError:
            pass
    hear(0.001)
ends = time.perf_counter() + patience
while sent and (left := ends - time.perf_counter()) > 0:
    hear(left)
for target in targets:
    print(best.get(target, "-"))
"""


async def measure(
    stations: Mapping[str, Station], wanted: tuple[Link, ...], label: str, longest_delay_s: float
) -> dict[Link, LinkQuality]:
    """The loss and delay of each of ``wanted``; links of machines not in ``stations`` are left out.

    ``label`` tells this measurement's datagrams from another's; answers are waited for a little
    longer than twice ``longest_delay_s``. Raises ``HarnessError`` when a machine can't be asked.
    """
    tried = [(a, b) for a, b in wanted if a in stations and b in stations]
    destinations = sorted({destination for _, destination in tried})
    # All listen before any sends: what arrives too early would count as lost.
    opened = await together(_listen(stations[name]) for name in destinations)
    listeners = dict(zip(destinations, opened, strict=True))
    sources = sorted({source for source, _ in tried})
    patience_s = PATIENCE_S + 2 * longest_delay_s
    trips = await together(
        _send(
            stations[name],
            f"{label}/{name}",
            [listeners[to].target for source, to in tried if source == name],
            patience_s,
        )
        for name in sources
    )
    heard = await together(
        stations[name].lane.call("counting datagrams", STEP_LIMIT_S, listeners[name].heard)
        for name in destinations
    )
    counted = {to: _counts(words) for to, words in zip(destinations, heard, strict=True)}
    found = {}
    for source, times in zip(sources, trips, strict=True):
        theirs = [to for a, to in tried if a == source]
        for to, seconds in zip(theirs, times, strict=True):
            share = counted[to].get(f"{label}/{source}", 0) / DATAGRAMS
            found[source, to] = LinkQuality(loss=1 - share, round_trip_s=seconds)
    return found


async def _listen(station: Station) -> Listener:
    return await station.lane.call(
        "listening for datagrams", STEP_LIMIT_S, Listener, station.session, station.address, ECHO
    )


async def _send(
    station: Station, token: str, targets: Iterable[str], patience_s: float
) -> list[float | None]:
    """The shortest way to each target and back, in seconds."""
    argv = ["python3", "-I", "-c", _SEND, token, str(DATAGRAMS), str(patience_s), *targets]
    limit_s = SEND_LIMIT_S + patience_s
    said = await station.lane.call(
        "sending datagrams",
        STEP_LIMIT_S + patience_s,
        lambda: station.session.run(argv, limit_s=limit_s, name="sending datagrams"),
    )
    return [None if word == "-" else float(word) for word in said.decode("ascii").split()]


def _counts(words: tuple[str, ...]) -> dict[str, int]:
    """Datagrams by token, from ``token count token count ...``."""
    if len(words) % 2:
        raise HarnessError(f"counting datagrams: expected pairs (got {len(words)} words)")
    return {token: int(count) for token, count in zip(words[::2], words[1::2], strict=True)}
