"""A node's configuration file: JSON, every key known, every bound named."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from clusters.reference.node import bugs
from clusters.reference.node.catalog.nodes import (
    DEFAULT_PROFILE,
    MAX_ATTRIBUTES,
    AttributeText,
    AttributeValue,
)

MAX_PARTITIONS = 1024
MAX_MEMBERS = 100
TickMs = Annotated[int, Meta(ge=1, le=10_000)]
ElectionTicks = Annotated[int, Meta(ge=4, le=1000)]  # raft's lease needs a margin of ticks
DEFAULT_TICK_MS = 100
SnapshotBytes = Annotated[int, Meta(ge=1, le=1 << 40)]
DEFAULT_SNAPSHOT_BYTES = 4 * 1024 * 1024
AppendEntries = Annotated[int, Meta(ge=1, le=1 << 16)]
DEFAULT_APPEND_ENTRIES = 256
AppendsAhead = Annotated[int, Meta(ge=1, le=1 << 10)]
# With the bytes of one message small enough that the catch-up of a dozen groups together stays
# below a connection's send queue.
DEFAULT_APPENDS_AHEAD = 16
DetectionS = Annotated[float, Meta(ge=0.5, le=600)]
DEFAULT_DETECTION_S = 2.0  # a lease, and time for its node to take it up again
Rebalance = Literal["base", "lock", "cancel"]
Attributes = Annotated[dict[AttributeText, AttributeValue], Meta(max_length=MAX_ATTRIBUTES)]
CLUSTER_TAG = "firedrill"
VERSION = "1"  # of what nodes of one cluster must agree on beyond the protocol between two of them
DEFAULT_ELECTION_TICKS = 6  # patience of 0.6 to 1.1 s at the default tick


class ConfigError(Exception):
    """A value in the configuration that is not accepted."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A host and a TCP port."""

    host: str
    port: int


class Tuning(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes and times that make rare paths common where they are small. A key that is not given
    has the usual value, which stands beside the code that it is of. The same on all members.
    """

    segment_bytes: Annotated[
        Annotated[int, Meta(ge=256, le=1 << 40)] | None,
        Meta(description="A segment of the log that is larger is closed."),
    ] = None
    record_bytes: Annotated[
        Annotated[int, Meta(ge=64, le=1 << 24)] | None,
        Meta(description="A record that is larger is logged in several."),
    ] = None
    piece_bytes: Annotated[
        Annotated[int, Meta(ge=16, le=1 << 22)] | None,
        Meta(description="Of a snapshot, in one message."),
    ] = None
    chunk_bytes: Annotated[
        Annotated[int, Meta(ge=16, le=1 << 22)] | None,
        Meta(description="Of a partition's snapshot, in one part."),
    ] = None
    max_history: Annotated[
        Annotated[int, Meta(ge=1, le=1 << 20)] | None,
        Meta(description="Revisions of the metastorage that are kept."),
    ] = None
    max_proposals: Annotated[
        Annotated[int, Meta(ge=2, le=1 << 16)] | None,
        Meta(description="Proposals that wait in one group, at most."),
    ] = None
    version_retention_s: Annotated[
        Annotated[float, Meta(ge=1, le=3600)] | None,
        Meta(description="How long old versions are kept; half as long may a snapshot be open."),
    ] = None
    outcome_retention_s: Annotated[
        Annotated[float, Meta(ge=4, le=3600)] | None,
        Meta(description="How long outcomes are kept; half as long may a transaction be open."),
    ] = None


class Zoned(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node of a cluster whose partitions follow distribution zones (IEP-101).

    ``system_nodes``: the names of the nodes that found the cluster and vote in metastorage, the
    same on all; all others follow it. A node joins if ``tag`` and ``version`` are those of the
    cluster. ``attributes`` and ``profiles`` are what it announces then. It is out ``detection_s``
    after the last renewal of its lease. ``rebalance``: the variant. ``phase2``:
    whether a restart looks for the copies with the last user inputs (IEP-131).
    """

    system_nodes: tuple[str, ...]
    tag: str = CLUSTER_TAG
    version: str = VERSION
    attributes: Attributes = {}
    profiles: tuple[AttributeText, ...] = (DEFAULT_PROFILE,)
    detection_s: DetectionS = DEFAULT_DETECTION_S
    rebalance: Rebalance = "base"
    phase2: bool = False


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configuration of a node.

    ``peers``: how this node dials each other member. ``partitions`` and ``replicas`` must be the
    same on all members; the first leader of metastorage makes them the cluster's. ``data_dir`` is
    relative to the working directory. A node sends heartbeats every tick, and a follower asks for
    votes after ``election_ticks`` to twice that without one. A group is saved and its log cut once
    it has applied ``snapshot_bytes``, or as much as its last snapshot takes. A leader sends a
    follower up to ``append_entries`` in one message, and ``appends_ahead`` of them before the first
    is answered. With ``power_loss`` a kill loses unsynced data. Without ``zoned`` the cluster is
    one zone of ``partitions`` and ``replicas``, and every member votes in metastorage.
    """

    node: str
    peer_bind: Endpoint
    client_bind: Endpoint
    peers: dict[str, Endpoint] = {}
    data_dir: str = "data"
    partitions: int = 8
    replicas: int = 3
    bugs: tuple[str, ...] = ()
    tick_ms: TickMs = DEFAULT_TICK_MS
    election_ticks: ElectionTicks = DEFAULT_ELECTION_TICKS
    snapshot_bytes: SnapshotBytes = DEFAULT_SNAPSHOT_BYTES
    append_entries: AppendEntries = DEFAULT_APPEND_ENTRIES
    appends_ahead: AppendsAhead = DEFAULT_APPENDS_AHEAD
    power_loss: bool = False
    tuning: Tuning = Tuning()
    zoned: Zoned | None = None

    @property
    def founders(self) -> tuple[str, ...]:
        """The nodes that found the cluster, sorted."""
        return self.members if self.zoned is None else tuple(sorted(self.zoned.system_nodes))

    @property
    def members(self) -> tuple[str, ...]:
        """All members of the cluster, sorted."""
        return tuple(sorted([self.node, *self.peers]))


def loads(data: bytes) -> Config:
    """Read and check a configuration. Raises ``ConfigError`` naming key, expectation and actual."""
    try:
        config = msgspec.json.decode(data, type=Config)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(str(error)) from error
    check(config)
    return config


def check(config: Config) -> None:
    """Raises ``ConfigError`` unless ``config`` can be run."""
    if not config.node or config.node in config.peers:
        raise ConfigError(f"node: a name that is not among the peers (got {config.node!r})")
    bounds = (
        ("members", len(config.members), 1, MAX_MEMBERS),
        ("partitions", config.partitions, 1, MAX_PARTITIONS),
        ("replicas", config.replicas, 1, len(config.members)),
    )
    for name, value, low, high in bounds:
        if not low <= value <= high:
            raise ConfigError(f"{name}: {low} to {high} (got {value})")
    try:
        bugs.check(config.bugs)
    except bugs.UnknownBug as error:
        raise ConfigError(f"bugs: {error}") from error
    if config.zoned is not None:
        _check_zoned(config.zoned, config.members)


def _check_zoned(zoned: Zoned, members: tuple[str, ...]) -> None:
    strangers = [name for name in zoned.system_nodes if name not in members]
    if not zoned.system_nodes or strangers:
        expected = f"one or more of {', '.join(members)}"
        got = ", ".join(zoned.system_nodes) or "none"
        raise ConfigError(f"zoned.system_nodes: {expected} (got {got})")
    if not zoned.tag:
        raise ConfigError("zoned.tag: a text of one character at least (got '')")
