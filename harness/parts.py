"""What a run is made of, as the wiring hands it over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import attrs

from harness.arsenal import FaultKind
from harness.cluster import Provider, System
from harness.faults import Nemesis
from harness.history.chunks import ChunkWriter, OpenHistory
from harness.records import Record
from harness.workload import Workload


class Guard(Protocol):
    """Who heals when this process is gone. See ``harness.cli.guard``."""

    def release(self) -> None:
        """Nothing is left to heal."""


@attrs.frozen(kw_only=True)
class Parts:
    """What the wiring puts together for ``execute``: the four plugins of a run.

    ``make_nemesis`` gets the sink of the history, since faults are recorded in it. ``wall_ns`` is
    the wall clock where that is virtual too; the machine's by default. ``open_history`` opens the
    run's stream of records in a directory. ``keep``, where it is given,
    is asked once the history is sealed whether the cluster is to be left up; ``True`` as its
    argument says that the run broke off. ``guard`` is released when the cluster was taken down, or
    left up on purpose. ``arsenal`` is what faults were possible here.
    ``driver_command`` starts a driver process (``harness.orders``), for plans that ask for several.
    """

    provider: Provider
    system: System
    workload: Workload
    make_nemesis: Callable[[Callable[[Record], None]], Nemesis]
    versions: dict[str, str]
    machine: dict[str, Any]
    wall_ns: Callable[[], int] | None = None
    open_history: OpenHistory = ChunkWriter
    keep: Callable[[bool], Awaitable[bool]] | None = None
    guard: Guard | None = None
    driver_command: tuple[str, ...] = ()
    arsenal: tuple[FaultKind, ...] = ()
