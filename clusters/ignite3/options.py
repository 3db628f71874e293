"""The plan's ``[system]`` table for Apache Ignite 3, and what follows from it: figures, and the
DDL of the zone and the table.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from harness.plan.planfile import FORM

RELEASE: Final = "3.1.0"
RELEASE_NAME: Final = r"[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z_.-]{1,40})?"

_Count = Annotated[int, Meta(ge=1, le=64)]
_Timer = Annotated[int, Meta(ge=0, le=2**31 - 1)]  # seconds; the largest one is never
_Mib = Annotated[int, Meta(ge=64, le=1 << 20)]
ATTRIBUTE: Final = "holds"  # of the nodes that the zone's filter selects
TABLE, ZONE = "ITEMS", "DRILL"
_MODES = {"SC": "STRONG_CONSISTENCY", "HA": "HIGH_AVAILABILITY"}


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The plan's ``[system]`` table."""

    release: Annotated[
        str,
        Meta(
            pattern=rf"^{RELEASE_NAME}\Z",
            extra={FORM: "a release such as '3.1.0', or '3.1.0-mine' of adopted jars"},
            description=(
                "A release that set-up has prepared: its number, or the name of adopted jars, "
                "which begins with the number."
            ),
        ),
    ] = RELEASE
    access: Annotated[
        Literal["key-value", "sql"], Meta(description="How clients ask: rows by key, or SQL.")
    ] = "key-value"
    mode: Annotated[
        Literal["SC", "HA"],
        Meta(description="The zone's consistency mode: strong, or highly available."),
    ] = "SC"
    system_nodes: Annotated[
        _Count,
        Meta(description="So many nodes, the first, hold cluster management and metastorage."),
    ] = 3
    system_apart: Annotated[bool, Meta(description="Whether those nodes hold no data.")] = False
    gateway_nodes: Annotated[
        int,
        Meta(
            ge=0,
            le=64,
            description="So many nodes, the last, hold nothing: they only serve clients.",
        ),
    ] = 0
    partitions: Annotated[_Count, Meta(description="Partitions of the zone.")] = 8
    replicas: Annotated[_Count, Meta(description="Replicas of each partition.")] = 3
    quorum: Annotated[
        _Count | None,
        Meta(
            description="Quorum size of the zone; the release's own choice where it is not given."
        ),
    ] = None
    heap_mib: Annotated[_Mib, Meta(description="Java heap of a node.")] = 512
    storage_mib: Annotated[_Mib, Meta(description="Size of a node's storage profile.")] = 128
    ping_ms: Annotated[
        int, Meta(ge=50, le=60_000, description="How often nodes probe each other.")
    ] = 500
    suspicion: Annotated[
        int,
        Meta(
            ge=1,
            le=100,
            description="`membershipSuspicionMultiplier` of the release: the larger, the longer a "
            "silent node is only suspected.",
        ),
    ] = 2
    lease_ms: Annotated[
        int, Meta(ge=2_000, le=120_000, description="How long a primary replica's lease lasts.")
    ] = 5_000
    rpc_timeout_ms: Annotated[
        int,
        Meta(
            ge=1_000,
            le=600_000,
            description=(
                "How long the end of a transaction waits for a replica that is gone. With the "
                "release's own its locks were seen to stand for 57 to 64 s; with 10 s some of "
                "those that had lost their majority stood for good."
            ),
        ),
    ] = 60_000
    raft_retry_ms: Annotated[
        Annotated[int, Meta(ge=1_000, le=600_000)] | None,
        Meta(
            description=(
                "How long an update looks for the leader of its partition; the release's own, 10 "
                "s, where it is not given."
            )
        ),
    ] = None
    fsync: Annotated[bool, Meta(description="Whether the raft log is synced.")] = False
    failure_handler: Annotated[
        Literal["noop", "stop", "stopOrHalt"],
        Meta(description="What a node does about a critical failure."),
    ] = "noop"
    scale_down_s: Annotated[
        _Timer | None,
        Meta(
            description="The zone's scale-down timer; OFF, the release's default, where it is not "
            "given."
        ),
    ] = None
    reset_timeout_s: Annotated[
        _Timer, Meta(description="`partitionDistributionResetTimeout` of the release.")
    ] = 0


def data_nodes(options: Options, nodes: tuple[str, ...]) -> tuple[str, ...]:
    """Those of ``nodes`` that the zone's filter selects."""
    first = options.system_nodes if options.system_apart else 0
    return nodes[first : len(nodes) - options.gateway_nodes]


def quorums(replicas: int) -> tuple[int, int]:
    """The smallest and the largest quorum that the release takes of so many replicas."""
    least = min(replicas, 2)
    return least, max(least, (replicas + 1) // 2)


def voters_of(options: Options) -> int:
    """How many voters a partition has. The release makes voters of twice the quorum less one, and
    learners of the other replicas.
    """
    usual = min(options.replicas, 2) if options.replicas <= 4 else 3
    return min(2 * (options.quorum or usual) - 1, options.replicas)


def blocking(options: Options) -> int:
    """How many voters of a partition have to be out for the others to be no majority."""
    voters = voters_of(options)
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
