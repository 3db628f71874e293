"""A node's configuration file: JSON, every key known, every bound named."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from clusters.reference.node import bugs

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
DEFAULT_ELECTION_TICKS = 6  # patience of 0.6 to 1.1 s at the default tick


class ConfigError(Exception):
    """A value in the configuration that is not accepted."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A host and a TCP port."""

    host: str
    port: int


class Tuning(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes and times that make rare paths common where they are small; the usual ones, beside the
    code that they are of, where they are not given. The same on all members.

    ``segment_bytes``: of the log, a segment over it is closed. ``record_bytes``: more is logged as
    several records. ``piece_bytes``: of a snapshot, in one message. ``chunk_bytes``: of a
    partition's snapshot, in one part. ``max_history``: revisions of metastorage. ``max_proposals``:
    that wait in one group. ``version_retention_s``: half as long may a snapshot be open.
    ``outcome_retention_s``: half as long may a transaction be open.
    """

    segment_bytes: Annotated[int, Meta(ge=256, le=1 << 40)] | None = None
    record_bytes: Annotated[int, Meta(ge=64, le=1 << 24)] | None = None
    piece_bytes: Annotated[int, Meta(ge=16, le=1 << 22)] | None = None
    chunk_bytes: Annotated[int, Meta(ge=16, le=1 << 22)] | None = None
    max_history: Annotated[int, Meta(ge=1, le=1 << 20)] | None = None
    max_proposals: Annotated[int, Meta(ge=2, le=1 << 16)] | None = None
    version_retention_s: Annotated[float, Meta(ge=1, le=3600)] | None = None
    outcome_retention_s: Annotated[float, Meta(ge=4, le=3600)] | None = None


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configuration of a node.

    ``peers``: how this node dials each other member. ``partitions`` and ``replicas`` must be the
    same on all members; the first leader of metastorage makes them the cluster's. ``data_dir`` is
    relative to the working directory. A node sends heartbeats every tick, and a follower asks for
    votes after ``election_ticks`` to twice that without one. A group is saved and its log cut once
    it has applied ``snapshot_bytes``, or as much as its last snapshot takes. A leader sends a
    follower up to ``append_entries`` in one message, and ``appends_ahead`` of them before the first
    is answered. With ``power_loss`` a kill loses unsynced data.
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
