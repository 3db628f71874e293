"""The zone and the table of a drill, as DDL."""

from __future__ import annotations

from typing import Final

from clusters.ignite3.options import Options

ATTRIBUTE: Final = "holds"  # of the nodes that the zone's filter selects
TABLE, ZONE = "ITEMS", "DRILL"
_MODES = {"SC": "STRONG_CONSISTENCY", "HA": "HIGH_AVAILABILITY"}


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
