"""Delays as a tree of ours at the root of a machine's interface: packets to a delayed peer take a
branch with ``netem`` at its end, all others none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from clusters.providers.remote.ssh_session import Session
from harness.protocols.cluster import LinkShape

APPLY_LIMIT_S = 10.0
QUEUE_PACKETS = (
    10_000  # held while delayed; more than a busy link sends in a minute's delay is lost
)
_MS_PER_S = 1000

# The interface is the one that leads to the peers: its name may change when a machine comes back.
_APPLY = """
set -eu
device=$(ip -o route get "$1" | sed -n 's/.* dev \\([^ ]*\\).*/\\1/p')
tc qdisc del dev "$device" root 2>/dev/null || true
sed "s/DEVICE/$device/" | tc -batch -
"""


def tree(delays_s: Mapping[str, float]) -> str:
    """Text for ``tc -batch`` that delays packets to each address; ``DEVICE`` stands for the
    interface. Empty where nothing is delayed.
    """
    if not delays_s:
        return ""
    # Without a default class: packets that no filter matches leave as they are.
    lines = ["qdisc add dev DEVICE root handle 1: htb"]
    for number, (address, delay_s) in enumerate(sorted(delays_s.items()), start=1):
        delay = f"{delay_s * _MS_PER_S:g}ms"
        lines += [
            f"class add dev DEVICE parent 1: classid 1:{number:x} htb rate 10gbit quantum 60000",
            f"qdisc add dev DEVICE parent 1:{number:x} netem delay {delay} limit {QUEUE_PACKETS}",
            f"filter add dev DEVICE parent 1: protocol ip u32 match ip dst {address}/32"
            f" flowid 1:{number:x}",
        ]
    return "\n".join([*lines, ""])


def delays_at(
    node: str, shapes: Iterable[LinkShape], addresses: Mapping[str, str]
) -> dict[str, float]:
    """The delay of packets from ``node`` to each address."""
    return {
        addresses[shape.link[1]]: shape.delay_s
        for shape in shapes
        if shape.link[0] == node and shape.delay_s > 0
    }


def apply(session: Session, delays_s: Mapping[str, float], peer: str) -> None:
    """Make the machine delay exactly ``delays_s``; ``peer`` is the address of any other machine.
    Blocking, idempotent.
    """
    session.run(
        ["sh", "-c", _APPLY, "sh", peer],
        limit_s=APPLY_LIMIT_S,
        name="applying delays",
        stdin=tree(delays_s).encode("ascii"),
    )
