"""Who is taken back into a cluster: nodes that answer over real HTTP, each with its own story."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import attrs
import pytest

from clusters.ignite3 import readmission
from clusters.ignite3.readmission import Admission
from harness.errors import HarnessError
from harness.protocols.cluster import Address, Cluster, NodeStatus

ALL = ("n1", "n2", "n3")


@attrs.define
class Story:
    """What a node answers; a restart of it makes the story another one."""

    state: str = "STARTED"
    members: tuple[str, ...] = ALL
    sees: tuple[str, ...] = ALL
    partition: str = "AVAILABLE"
    version: str = "3.1.0"

    def answer(self, path: str) -> Any:
        if path.endswith("/node/state"):
            return {"name": "", "state": self.state}
        if path.endswith("/node/version"):
            return {"version": self.version, "product": "Apache Ignite"}
        if "/topology/" in path:
            told = self.members if path.endswith("/logical") else self.sees
            return [{"name": name} for name in told]
        return {"states": [{"partitionId": 0, "state": self.partition, "zoneName": "DRILL"}]}


class Recorder:
    """The verbs of a provider that admission uses, and what they do to the stories."""

    def __init__(self, stories: dict[str, Story], dead: tuple[str, ...] = ()) -> None:
        self.verbs: list[str] = []
        self._stories, self._dead = stories, dead

    async def probe(self, node: str) -> NodeStatus:
        paused = node == "n2" and bool(self._dead)
        return NodeStatus(node=node, running=node not in self._dead, paused=paused, pid=1)

    async def kill(self, node: str) -> None:
        self.verbs.append(f"kill {node}")

    async def start(self, node: str) -> None:
        self.verbs.append(f"start {node}")
        self._stories.update({name: Story() for name in self._stories})

    async def resume(self, node: str) -> None:
        self.verbs.append(f"resume {node}")


@contextmanager
def serving(stories: dict[str, Story]) -> Iterator[Cluster]:
    """The nodes of ``stories`` on loopback ports."""

    def handler(node: str) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = json.dumps(stories[node].answer(self.path.partition("?")[0])).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing on the terminal."""

        return Handler

    servers = {node: ThreadingHTTPServer(("127.0.0.1", 0), handler(node)) for node in stories}
    for server in servers.values():
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    at = {
        node: {"rest": Address(host="127.0.0.1", port=server.server_port)}
        for node, server in servers.items()
    }
    try:
        yield Cluster(nodes=tuple(stories), bind=at, peer={}, client=at, work_dir={})
    finally:
        for server in servers.values():
            server.shutdown()
            server.server_close()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readmission, "THROWN_OUT_S", 0.0)
    monkeypatch.setattr(readmission, "THROWN_OUT_STARTING_S", 0.0)


def readmitted(stories: dict[str, Story], nodes: tuple[str, ...] = ALL) -> Recorder:
    recorder: Any = Recorder(stories)
    with serving(stories) as cluster:
        asyncio.run(Admission(cluster, recorder, 1).readmit(nodes))
    return recorder  # type: ignore[no-any-return]


def test_a_node_that_the_others_have_removed_is_another_process_afterwards() -> None:
    without = Story(members=("n1", "n2"), sees=("n1", "n2"))
    stories = {"n1": without, "n2": without, "n3": Story(members=("n1", "n2"), sees=("n3",))}

    assert readmitted(stories).verbs == ["kill n3", "start n3"]


def test_a_node_of_a_whole_cluster_is_left_alone() -> None:
    assert readmitted({node: Story() for node in ALL}).verbs == []


def test_only_nodes_that_were_named_are_taken_back() -> None:
    without = Story(members=("n1", "n2"), sees=("n1", "n2"))
    stories = {"n1": without, "n2": without, "n3": Story(members=("n1", "n2"), sees=("n3",))}

    assert readmitted(stories, ("n1", "n2")).verbs == []
    assert readmitted(stories, ()).verbs == []


def test_a_node_that_came_in_between_two_looks_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without = Story(members=("n1", "n2"))
    stories = {"n1": without, "n2": without, "n3": without}

    async def joins(_: float) -> None:
        stories.update({node: Story() for node in ALL})

    monkeypatch.setattr("clusters.ignite3.readmission.asyncio.sleep", joins)

    assert readmitted(stories).verbs == []


def test_before_there_is_a_cluster_a_stranger_is_started_again() -> None:
    apart = Story(sees=("n1", "n2"))
    stories = {"n1": apart, "n2": apart, "n3": Story(sees=("n3",))}
    recorder: Any = Recorder(stories)

    with serving(stories) as cluster:
        asyncio.run(Admission(cluster, recorder, 1).introduce())

    assert recorder.verbs == ["kill n3", "start n3"]


def test_what_is_down_is_started_and_what_is_paused_goes_on() -> None:
    stories = {node: Story() for node in ALL}
    recorder: Any = Recorder(stories, dead=("n3",))

    with serving(stories) as cluster:
        asyncio.run(Admission(cluster, recorder, 1).revive())

    assert sorted(recorder.verbs) == ["resume n2", "start n3"]


@pytest.mark.parametrize(
    ("story", "lacking"),
    [
        (Story(), []),
        (Story(state="STARTING"), ["n1 is STARTING", "n2 is STARTING", "n3 is STARTING"]),
        (Story(members=("n1", "n2")), ["n3 is not in the topology"]),
        (Story(partition="DEGRADED"), ["partition 0 is DEGRADED", "partition 1 is not there"]),
    ],
)
def test_what_keeps_a_cluster_from_being_whole_is_told(story: Story, lacking: list[str]) -> None:
    recorder: Any = Recorder({})
    partitions = len(lacking) if "partition" in str(lacking) else 1

    with serving(dict.fromkeys(ALL, story)) as cluster:
        told = asyncio.run(Admission(cluster, recorder, partitions).not_whole())

    assert told == lacking


@pytest.mark.parametrize(
    ("release", "others"),
    [
        ("3.1.0", ["n2 runs 3.2.0-SNAPSHOT"]),
        ("3.1.0-mine", ["n2 runs 3.2.0-SNAPSHOT"]),
        ("3.2.0-SNAPSHOT", ["n1 runs 3.1.0", "n3 runs 3.1.0"]),
        ("3.1.00", ["n1 runs 3.1.0", "n2 runs 3.2.0-SNAPSHOT", "n3 runs 3.1.0"]),
    ],
)
def test_nodes_of_another_release_than_the_plans_are_named(release: str, others: list[str]) -> None:
    stories = {"n1": Story(), "n2": Story(version="3.2.0-SNAPSHOT"), "n3": Story()}
    recorder: Any = Recorder(stories)

    with serving(stories) as cluster:
        found = asyncio.run(Admission(cluster, recorder, 1).not_of(release))

    assert found == others


def test_a_node_that_ended_as_it_started_is_told_at_once_and_not_waited_for() -> None:
    stories = {"n1": Story()}
    recorder: Any = Recorder(stories, dead=("n3",))

    with serving(stories) as cluster:
        silent = Address(host="127.0.0.1", port=1)
        client = {**cluster.client, "n3": {"rest": silent}, "n2": {"rest": silent}}
        whole = attrs.evolve(cluster, nodes=ALL, client=client)
        with pytest.raises(HarnessError, match=r"n3 did not start: ended; .*scripts/prepare-ign"):
            asyncio.run(Admission(whole, recorder, 1).not_up(ALL))
        assert asyncio.run(Admission(whole, recorder, 1).not_up(("n1", "n2"))) == [
            "n2 does not answer"
        ]
