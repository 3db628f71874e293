"""The moments that simulated nodes come to, told at that very instant."""

from __future__ import annotations

from collections.abc import Callable, Collection

from harness.protocols.cluster import Roles
from harness.protocols.moments import Happening, Moment, Observer, RolesHeard

_BY_NAME = {moment.value: moment for moment in Moment}


class MomentFeed:
    """Tells moments to observers, and remembers which node led or was granted a partition last."""

    def __init__(self) -> None:
        self._observers: list[Observer] = []
        self._heard = RolesHeard()

    def observe(self, observer: Observer) -> None:
        """Tell ``observer`` from now on."""
        self._observers.append(observer)

    def listener(self, node: str) -> Callable[[str, int | None], None]:
        """The listener for the moments of a process on ``node``."""
        return lambda name, partition: self._came(node, name, partition)

    def roles(self, running: Collection[str]) -> Roles:
        """Roles by the moments so far, as far as the nodes that had them are ``running``."""
        return self._heard.roles(running)

    def _came(self, node: str, name: str, partition: int | None) -> None:
        moment = _BY_NAME.get(name)
        if moment is None:  # one at which no fault is aimed
            return
        happening = Happening(moment=moment, node=node, partition=partition)
        self._heard.take(happening)
        for observer in self._observers:
            observer(happening)
