"""The plan's ``[system]`` table for Apache Ignite 3, and what follows from it: figures, and the
DDL of the zone and the table.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

RELEASE: Final = "3.1.0"
RELEASE_NAME: Final = r"[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z_.-]{1,40})?"

_Count = Annotated[int, Meta(ge=1, le=64)]
_Timer = Annotated[int, Meta(ge=0, le=2**31 - 1)]  # seconds; the largest one is never
_Mib = Annotated[int, Meta(ge=64, le=1 << 20)]
ATTRIBUTE: Final = "holds"  # of the nodes that the zone's filter selects
TABLE, ZONE = "ITEMS", "DRILL"
_MODES = {"SC": "STRONG_CONSISTENCY", "HA": "HIGH_AVAILABILITY"}


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first ``system_nodes`` nodes hold cluster management and metastorage, the last
    ``gateway_nodes`` nothing: they only serve clients. All others hold data, and the system nodes,
    too, unless ``system_apart`` keeps them from it. ``mode`` is the zone's consistency mode, strong
    or highly available. ``quorum`` of ``None`` is the release's own choice. ``reset_timeout_s`` is
    its ``partitionDistributionResetTimeout``; ``scale_down_s`` of ``None`` is OFF, the release's
    default. ``rpc_timeout_ms`` is how long the end of a transaction waits for a replica that is
    gone. With the release's own its locks were seen to stand for 57 to 64 s; with 10 s some of
    those that had lost their majority stood for good. ``raft_retry_ms`` is how long an update looks
    for the leader of its partition before it is given up; ``None`` is the release's own, 10 s.
    ``release`` is one that set-up has prepared: a number, or the name of adopted jars, which begins
    with their release's number.
    """

    release: Annotated[str, Meta(pattern=rf"^{RELEASE_NAME}\Z")] = RELEASE
    access: Literal["key-value", "sql"] = "key-value"
    mode: Literal["SC", "HA"] = "SC"
    system_nodes: _Count = 3
    system_apart: bool = False
    gateway_nodes: Annotated[int, Meta(ge=0, le=64)] = 0
    partitions: _Count = 8
    replicas: _Count = 3
    quorum: _Count | None = None
    heap_mib: _Mib = 512
    storage_mib: _Mib = 128
    ping_ms: Annotated[int, Meta(ge=50, le=60_000)] = 500
    suspicion: Annotated[int, Meta(ge=1, le=100)] = 2
    lease_ms: Annotated[int, Meta(ge=2_000, le=120_000)] = 5_000
    rpc_timeout_ms: Annotated[int, Meta(ge=1_000, le=600_000)] = 60_000
    raft_retry_ms: Annotated[int, Meta(ge=1_000, le=600_000)] | None = None
    fsync: bool = False
    failure_handler: Literal["noop", "stop", "stopOrHalt"] = "noop"
    scale_down_s: _Timer | None = None
    reset_timeout_s: _Timer = 0


def data_nodes(options: Options, nodes: tuple[str, ...]) -> tuple[str, ...]:
    """Those of ``nodes`` that the zone's filter selects."""
    first = options.system_nodes if options.system_apart else 0
    return nodes[first : len(nodes) - options.gateway_nodes]


def quorums(replicas: int) -> tuple[int, int]:
    """The smallest and the largest quorum that the release takes of so many replicas."""
    least = min(replicas, 2)
    return least, max(least, (replicas + 1) // 2)


def blocking(options: Options) -> int:
    """How many voters of a partition have to be out for the others to be no majority. The release
    makes voters of twice the quorum less one, and learners of the other replicas.
    """
    usual = min(options.replicas, 2) if options.replicas <= 4 else 3
    voters = min(2 * (options.quorum or usual) - 1, options.replicas)
    return voters - voters // 2


def serves_again_s(options: Options) -> float:
    """How long a partition may stand still after a fault: until a silent node is out (measured: 3 s
    with the usual values, 6 s with twice the suspicion), and its lease is over.
    """
    detected_s = 3 * options.ping_ms * options.suspicion / 1000
    return detected_s + options.lease_ms / 1000


def statements(options: Options) -> tuple[str, ...]:
    """The DDL of the zone and the table. The default zone goes: its 25 raft groups cost."""
    down = "OFF" if options.scale_down_s is None else str(options.scale_down_s)
    quorum = "" if options.quorum is None else f"QUORUM SIZE {options.quorum}, "
    return (
        f"CREATE ZONE {ZONE} (PARTITIONS {options.partitions}, REPLICAS {options.replicas}, "
        f"{quorum}NODES FILTER '$[?(@.{ATTRIBUTE} == \"data\")]', "
        f"CONSISTENCY MODE '{_MODES[options.mode]}', AUTO SCALE DOWN {down}) "
        "STORAGE PROFILES ['default']",
        f"ALTER ZONE {ZONE} SET DEFAULT",
        'DROP ZONE "Default"',
        f"CREATE TABLE {TABLE} (K BIGINT PRIMARY KEY, V VARCHAR) ZONE {ZONE}",
    )
