"""What a provider may be able to do to a node; found by probing, never assumed."""

from __future__ import annotations

import enum


class Capability(enum.StrEnum):
    """One ability of a provider on this machine. A plan that needs an absent one is refused."""

    KILL = "kill"
    PAUSE = "pause"
    FREEZE = "freeze"
    HOST_LOSS = "host-loss"
    PARTITION = "partition"
    ONE_WAY_PARTITION = "one-way-partition"
    PACKET_LOSS = "packet-loss"
    DELAY = "delay"
    THROTTLE = "throttle"
    CLOCK = "clock"
    DISK = "disk"
