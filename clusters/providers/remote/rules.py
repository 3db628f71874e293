"""Cuts as an iptables chain of our own inside a machine's network namespace.

Docker keeps rules for its name server in the same namespace, so nothing but this chain and the one
jump into it is ever touched. The chain is replaced in one transaction; it drops by source address
and looks at no state, so what is established dies too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from clusters.providers.remote.session import Session
from harness.cluster import Grudge

CHAIN = "FIREDRILL"
APPLY_LIMIT_S = 10.0

# The jump stands first, so that nothing accepts before it. `-w` waits for others' table locks.
_APPLY = """
set -eu
iptables-restore --wait 5 --noflush
iptables --wait 5 --check INPUT --jump "$1" 2>/dev/null \\
  || iptables --wait 5 --insert INPUT 1 --jump "$1"
"""


def chain(sources: Iterable[str], control_port: int) -> str:
    """Text for ``iptables-restore --noflush`` that makes the chain drop exactly ``sources``."""
    lines = ["*filter", f":{CHAIN} - [0:0]"]
    lines.append(f"-A {CHAIN} -p tcp -m tcp --dport {control_port} -j RETURN")
    lines += [f"-A {CHAIN} -s {source}/32 -j DROP" for source in sources]
    return "\n".join([*lines, "COMMIT", ""])


def sources_of(grudge: Grudge, node: str, addresses: Mapping[str, str]) -> tuple[str, ...]:
    """The addresses that ``node`` must not hear from under ``grudge``, in the grudge's order."""
    return tuple(addresses[source] for source, destination in grudge if destination == node)


def apply(session: Session, sources: Sequence[str], control_port: int) -> None:
    """Make the machine drop packets from exactly ``sources``. Blocking, idempotent."""
    session.run(
        ["sh", "-c", _APPLY, "sh", CHAIN],
        limit_s=APPLY_LIMIT_S,
        name="applying the cut",
        stdin=chain(sources, control_port).encode("ascii"),
    )
