"""What a look at a program through the daemon shows, and what shows nothing."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from docker.errors import APIError

from clusters.providers.docker import daemon_tasks
from clusters.providers.docker.container import Limits
from clusters.providers.docker.machines import FREEZE_TRIES, Machines, MachineState
from clusters.providers.remote.program import Process
from harness.errors import HarnessError
from harness.protocols.cluster import NodeStatus

STAT = b"24 (a) b) S 1 24 24 0 -1 4194560 1 0 0 0 1 2 0 0 20 0 1 0 77 100 5"
PROGRAM = Process(pid=24, ticks=77)


@attrs.frozen
class Machine:
    """A running machine that answers every command so."""

    code: int
    output: bytes

    def state(self, node: str) -> MachineState:
        return MachineState(exists=True, running=True)

    def execute(self, node: str, argv: list[str]) -> tuple[int, bytes]:
        return self.code, self.output


def look(code: int, output: bytes) -> NodeStatus:
    machines: Any = Machine(code, output)
    return daemon_tasks.look(machines, "n1", PROGRAM, None)


def test_a_program_is_gone_only_where_the_machine_says_so() -> None:
    assert look(0, STAT).running
    assert not look(0, b"gone\n").running
    assert not look(0, STAT.replace(b" 77 ", b" 78 ")).running  # its pid is another's now


class Reluctant:
    """A daemon whose runtime can't freeze a container before the last of ``tries``."""

    def __init__(self, tries: int) -> None:
        self.tries, self.asked, self.paused = tries, 0, False

    def inspect_container(self, name: str) -> dict[str, Any]:
        return {
            "State": {
                "Running": True,
                "Paused": self.paused,
                "Status": "running",
                "OOMKilled": False,
            }
        }

    def pause(self, name: str) -> None:
        self.asked += 1
        if self.asked < self.tries:
            raise APIError("unable to freeze: unknown")
        self.paused = True


def machines(daemon: Reluctant) -> Machines:
    client: Any = daemon
    return Machines(client, "run", "image", Limits())


def test_a_machine_that_does_not_stand_still_at_once_is_asked_again() -> None:
    daemon, stubborn = Reluctant(3), Reluctant(1000)
    machines(daemon).freeze("n1")

    assert daemon.paused
    with pytest.raises(HarnessError, match=r"freezing the container of n1: .*unable to freeze"):
        machines(stubborn).freeze("n1")
    assert stubborn.asked == FREEZE_TRIES


@pytest.mark.parametrize(
    ("code", "output"), [(-1, b""), (0, b""), (137, b""), (126, b"OCI runtime")]
)
def test_a_look_without_an_answer_shows_nothing(code: int, output: bytes) -> None:
    with pytest.raises(HarnessError, match="looking at process 24 of n1 showed nothing: status"):
        look(code, output)


def test_a_machine_that_once_shows_nothing_is_looked_at_again() -> None:
    class Absent(Machine):
        def execute(self, node: str, argv: list[str]) -> tuple[int, bytes]:
            return next(given)

    given = iter([(0, b""), (-1, b""), (0, STAT)])
    machines: Any = Absent(0, b"")
    assert daemon_tasks.look(machines, "n1", PROGRAM, None).running
