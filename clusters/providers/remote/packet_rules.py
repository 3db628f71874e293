"""Cuts and losses as an iptables chain of our own inside a machine's network namespace.

Docker keeps rules for its name server in the same namespace, so only this chain and the one jump
into it are ever touched. The chain is replaced in one transaction; it drops by source address and
ignores connection state, so established connections are cut too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from clusters.providers.remote.ssh_session import Session
from harness.protocols.cluster import Grudge, LinkShape

CHAIN = "FIREDRILL"
APPLY_LIMIT_S = 10.0

# The jump stands first, so that nothing accepts before it. `-w` waits for others' table locks.
_APPLY = """
set -eu
iptables-restore --wait 5 --noflush
iptables --wait 5 --check INPUT --jump "$1" 2>/dev/null \\
  || iptables --wait 5 --insert INPUT 1 --jump "$1"
"""


@attrs.frozen
class Drop:
    """A ``share`` of the packets from address ``source``; 1 is all of them."""

    source: str
    share: float = 1.0


def chain(drops: Iterable[Drop], control_port: int) -> str:
    """Text for ``iptables-restore --noflush`` that makes the chain drop exactly ``drops``.

    Packets to and from a control port are spared: a machine that dials another's shows that the way
    is there, even where all else is dropped.
    """
    # A chain that is named here is emptied, --noflush or not: old drops never stay behind.
    lines = ["*filter", f":{CHAIN} - [0:0]"]
    for end in ("dport", "sport"):
        lines.append(f"-A {CHAIN} -p tcp -m tcp --{end} {control_port} -j RETURN")
    for drop in drops:
        chance = f" -m statistic --mode random --probability {drop.share:.6f}"
        lines.append(f"-A {CHAIN} -s {drop.source}/32{chance if drop.share < 1 else ''} -j DROP")
    return "\n".join([*lines, "COMMIT", ""])


def drops_at(
    node: str, grudge: Grudge, shapes: Iterable[LinkShape], addresses: Mapping[str, str]
) -> tuple[Drop, ...]:
    """The drops at ``node`` under ``grudge`` and ``shapes``, in their order."""
    cut = [Drop(addresses[source]) for source, destination in grudge if destination == node]
    lossy = [
        Drop(addresses[shape.link[0]], shape.loss)
        for shape in shapes
        if shape.link[1] == node and shape.loss > 0
    ]
    return (*cut, *lossy)


def apply(session: Session, drops: Iterable[Drop], control_port: int) -> None:
    """Make the machine drop exactly ``drops``. Blocking, idempotent."""
    session.run(
        ["sh", "-c", _APPLY, "sh", CHAIN],
        limit_s=APPLY_LIMIT_S,
        name="applying the cut",
        stdin=chain(drops, control_port).encode("ascii"),
    )
