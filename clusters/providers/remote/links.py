"""Probes of links: whether datagrams from one machine reach another, by sending some.

Every destination listens, then every source sends, then the listeners are told that it is over: no
part waits for a fixed time, and a slow machine is not mistaken for a cut.

Silence alone is no proof of a cut. So behind its datagrams every source dials the destination's
control port, which no rule drops but every delay delays: once that is answered, the datagrams
before it have arrived or were dropped. Against loss at random there are so many of them that not
all get lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import attrs

from clusters.providers.remote.node_threads import Lane, together
from clusters.providers.remote.ssh_session import RunningCommand, Session
from harness.errors import HarnessError
from harness.protocols.cluster import Link, LinkShape

LISTEN_LIMIT_S = 25.0  # longer than sending, which happens meanwhile
SEND_LIMIT_S = 8.0
STEP_LIMIT_S = LISTEN_LIMIT_S + 5.0
# For the answer of a control port: several tries of the kernel, and what the links delay them.
CONTROL_LIMIT_S = 2.0
PATIENCE_LIMIT_S = 12.0
# One datagram may be lost to a full queue, three 20 ms apart are not.
ROUNDS_MIN = 3
# More would take longer than a look at a link may. Of 3 % that pass some get through.
ROUNDS_MAX = 400
ALL_LOST = 1e-6  # how likely a lossy link may seem cut

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

# Each target is HOST:PORT:CONTROL_PORT:ROUNDS. Says the targets whose control port answered, a
# refusal included: that came from there too.
_SEND = """
import errno, select, socket, sys, time
said, patience = sys.argv[1].encode("ascii"), float(sys.argv[2])
targets = {}
for text in sys.argv[3:]:
    host, port, control, rounds = text.split(":")
    targets[text] = (host, int(port)), (host, int(control)), int(rounds)
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
most = max(rounds for _, _, rounds in targets.values())
for number in range(most):
    for target, _, rounds in targets.values():
        try:
            if number < rounds:
                sender.sendto(said, target)
        except OSError:
            pass
    time.sleep(min(0.02, 1 / most))
dialling = {}
for text, (_, control, _) in targets.items():
    dial = socket.socket()
    dial.setblocking(False)
    dial.connect_ex(control)
    dialling[dial] = text
ends = time.perf_counter() + patience
while dialling and (left := ends - time.perf_counter()) > 0:
    for dial in select.select([], dialling, [], left)[1]:
        text = dialling.pop(dial)
        if dial.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in (0, errno.ECONNREFUSED):
            print(text)
"""


class Listener:
    """A receiver of datagrams on a machine."""

    def __init__(self, session: Session, address: str, script: str = _LISTEN) -> None:
        """Start listening on ``address``; returns when it does. ``script`` prints its port first,
        and the datagrams that it heard when its input ends.
        """
        self._running: RunningCommand = session.open(
            ["python3", "-I", "-c", script, address],
            limit_s=LISTEN_LIMIT_S,
            name="listening for probes",
        )
        port = self._running.line()
        # ``finish`` raises with what it said, where it could not start.
        if not port.isdigit():
            self._running.finish()
            raise HarnessError(f"{session.node}: the probe's listener named no port (got {port!r})")
        self.target = f"{address}:{port}"

    def heard(self) -> tuple[str, ...]:
        """Stop listening; the words of the listener's report of datagrams that arrived."""
        return tuple(self._running.finish().decode("ascii", "replace").split())


def send(session: Session, token: str, targets: Iterable[str], patience_s: float) -> set[str]:
    """Send ``token`` to every ``host:port:control_port:rounds`` of ``targets``; return those whose
    control port answered within ``patience_s`` behind it.
    """
    said = session.run(
        ["python3", "-I", "-c", _SEND, token, str(patience_s), *targets],
        limit_s=SEND_LIMIT_S + patience_s,
        name="sending probes",
    )
    return set(said.decode("ascii", "replace").split())


def rounds_against(loss: float) -> int | None:
    """How many datagrams to send where each is lost by chance with probability ``loss``, so that
    some arrive; ``None`` where no number that can be sent is enough.
    """
    # Some all the same: a single datagram may be dropped by a busy host.
    if loss <= 0:
        return ROUNDS_MIN
    # So many that the chance of losing all of them is below ``ALL_LOST``.
    rounds = math.ceil(math.log(ALL_LOST) / math.log(loss)) if loss < 1 else ROUNDS_MAX + 1
    return max(ROUNDS_MIN, rounds) if rounds <= ROUNDS_MAX else None


@attrs.frozen(kw_only=True)
class Station:
    """A machine that can be asked to listen and to send."""

    lane: Lane
    session: Session
    address: str
    control_port: int


async def probe(
    stations: Mapping[str, Station],
    wanted: tuple[Link, ...],
    label: str,
    shapes: Iterable[LinkShape] = (),
) -> dict[Link, bool]:
    """Whether datagrams pass each of ``wanted``, while ``shapes`` are in force.

    The result leaves out links that can't be probed: those of machines not in ``stations``, links
    that lose nearly everything, and silent links on which the control is silent too. ``label``
    tells this probe's datagrams from another's. Raises ``HarnessError`` when a machine of
    ``stations`` does not do its part.
    """
    spoiled = {shape.link: shape for shape in shapes}
    rounds = {link: rounds_against(_of(spoiled, link).loss) for link in wanted}
    tried = {
        link: number
        for link, number in rounds.items()
        # A frozen or lost machine can neither listen nor send: its links are not probed.
        if number is not None and all(end in stations for end in link)
    }
    # The control's answer passes two links, either of which may be delayed.
    patience_s = CONTROL_LIMIT_S + 2 * max((s.delay_s for s in spoiled.values()), default=0.0)
    listeners = await _listen(stations, sorted({destination for _, destination in tried}))
    answered = await _send(stations, tried, listeners, label, min(patience_s, PATIENCE_LIMIT_S))
    tokens = await together(
        stations[name].lane.call("hearing probes", STEP_LIMIT_S, listener.heard)
        for name, listener in listeners.items()
    )
    heard = dict(zip(listeners, tokens, strict=True))
    # By sender: one listener hears all that send to its machine.
    arrived = {(a, b): f"{label}/{a}" in heard[b] for a, b in tried}
    # Silence proves a cut only where the same machine answered on another port meanwhile.
    return {link: passed for link, passed in arrived.items() if passed or link in answered}


def _of(shapes: Mapping[Link, LinkShape], link: Link) -> LinkShape:
    return shapes.get(link) or LinkShape(link=link)


async def _listen(
    stations: Mapping[str, Station], destinations: Iterable[str]
) -> dict[str, Listener]:
    names = tuple(destinations)
    opened = await together(
        stations[name].lane.call(
            "listening for probes",
            STEP_LIMIT_S,
            Listener,
            stations[name].session,
            stations[name].address,
        )
        for name in names
    )
    return dict(zip(names, opened, strict=True))


async def _send(
    stations: Mapping[str, Station],
    tried: Mapping[Link, int],
    listeners: Mapping[str, Listener],
    label: str,
    patience_s: float,
) -> frozenset[Link]:
    """Send over all links; those whose control port answered."""
    sources = sorted({source for source, _ in tried})
    targets = {
        link: f"{listeners[link[1]].target}:{stations[link[1]].control_port}:{rounds}"
        for link, rounds in tried.items()
    }
    said = await together(
        stations[name].lane.call(
            "sending probes",
            STEP_LIMIT_S,
            send,
            stations[name].session,
            f"{label}/{name}",
            [target for (source, _), target in targets.items() if source == name],
            patience_s,
        )
        for name in sources
    )
    answers = dict(zip(sources, said, strict=True))
    return frozenset(link for link, target in targets.items() if target in answers[link[0]])
