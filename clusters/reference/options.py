"""What a plan's ``[system]`` table says of the reference store."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from clusters.reference.node import bugs
from clusters.reference.node.catalog.nodes import AttributeText
from clusters.reference.node.config import (
    DEFAULT_APPEND_ENTRIES,
    DEFAULT_APPENDS_AHEAD,
    DEFAULT_ELECTION_TICKS,
    DEFAULT_SNAPSHOT_BYTES,
    DEFAULT_TICK_MS,
    MAX_PARTITIONS,
    AppendEntries,
    AppendsAhead,
    Attributes,
    DetectionS,
    ElectionTicks,
    Rebalance,
    SnapshotBytes,
    TickMs,
    Tuning,
)
from clusters.reference.zones import Mode
from harness.plan.plan import MAX_NODES

USUAL_REPLICAS = 3  # one may be lost

PaddingBytes = Annotated[int, Meta(ge=0, le=1 << 19)]  # half of the largest value


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The plan's ``[system]`` table for this store. A plan that has one of the keys ``zones.KEYS``
    makes a cluster with distribution zones.
    """

    partitions: Annotated[
        int, Meta(ge=1, le=MAX_PARTITIONS, description="Partitions of the data.")
    ] = 8
    replicas: Annotated[
        int,
        Meta(
            ge=1,
            le=MAX_NODES,
            description="Replicas of each partition; as many as nodes where there are fewer.",
        ),
    ] = USUAL_REPLICAS
    bugs: Annotated[
        # Named in the schema alone: what refuses another one is ``bugs.check``, which says more.
        tuple[Annotated[str, Meta(extra_json_schema={"enum": sorted(bugs.KNOWN)})], ...],
        Meta(description="Planted bugs that are on (`firedrill list bugs`)."),
    ] = ()
    tick_ms: Annotated[
        TickMs, Meta(description="A tick of raft: how often a leader sends heartbeats.")
    ] = DEFAULT_TICK_MS
    election_ticks: Annotated[
        ElectionTicks,
        Meta(
            description=(
                "A follower asks for votes after so many ticks, up to twice as many, without a "
                "heartbeat."
            )
        ),
    ] = DEFAULT_ELECTION_TICKS
    snapshot_bytes: Annotated[
        SnapshotBytes,
        Meta(description="A group is saved and its log cut once it has applied so much."),
    ] = DEFAULT_SNAPSHOT_BYTES
    append_entries: Annotated[
        AppendEntries,
        Meta(description="Entries in one message of a leader to a follower, at most."),
    ] = DEFAULT_APPEND_ENTRIES
    appends_ahead: Annotated[
        AppendsAhead,
        Meta(
            description="Messages of a leader that wait for the answers of one follower, at most."
        ),
    ] = DEFAULT_APPENDS_AHEAD
    power_loss: Annotated[
        bool, Meta(description="Whether a kill loses what was not synced, as a power loss does.")
    ] = False
    padding_bytes: Annotated[
        PaddingBytes, Meta(description="Bytes that clients write beside each value, at most.")
    ] = 0
    tuning: Annotated[
        Tuning,
        Meta(description="Sizes and times that make rare paths common where they are small."),
    ] = Tuning()
    system_nodes: Annotated[
        Annotated[int, Meta(ge=1, le=64)] | None,
        Meta(
            description=(
                "With zones: so many nodes, the first, hold cluster management and metastorage; 3"
                " where it is not given."
            )
        ),
    ] = None
    system_apart: Annotated[
        bool, Meta(description="With zones: whether those nodes hold no data.")
    ] = False
    attributes: Annotated[
        dict[str, Attributes | list[AttributeText]],
        Meta(
            description=(
                "With zones: what nodes announce, by name: values by attribute, or a list of "
                "attributes without value."
            )
        ),
    ] = {}
    profiles: Annotated[
        dict[str, tuple[AttributeText, ...]],
        Meta(description="With zones: the storage profiles of nodes, by name."),
    ] = {}
    detection_s: Annotated[
        DetectionS | None,
        Meta(
            description=(
                "With zones: a node is out so long after its lease ended; 2 where it is not given."
            )
        ),
    ] = None
    rebalance: Annotated[
        Rebalance | None,
        Meta(description="With zones: the variant of rebalance; `base` where it is not given."),
    ] = None
    mode: Annotated[
        Mode | None,
        Meta(
            description=(
                "With zones: the consistency mode, strong or highly available; `SC` where it is "
                "not given."
            )
        ),
    ] = None
    reset_timeout_s: Annotated[
        Annotated[int, Meta(ge=0, le=2**31 - 1)] | None,
        Meta(
            description=(
                "With zones, in mode `HA`: how long after its nodes left a partition without a "
                "majority goes on with those that are left; 0 where it is not given."
            )
        ),
    ] = None
    phase2: Annotated[
        bool,
        Meta(
            description=(
                "With zones, in mode `HA`: whether partitions start, after a restart, from the "
                "copies that clients have written to last, and not from the last ones."
            )
        ),
    ] = False
    ddl: Annotated[
        tuple[str, ...] | None,
        Meta(
            description=(
                "With zones: statements that are run at set-up; by default made of `partitions` "
                "and `replicas`."
            )
        ),
    ] = None
