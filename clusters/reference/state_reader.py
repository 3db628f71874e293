"""The reference store's events and states, as a search over simulated runs counts them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from clusters.reference.node.composition import Components
from clusters.reference.node.config import Config
from clusters.reference.node.groups.group import Group
from clusters.reference.node.metastorage.metastorage import METASTORAGE
from clusters.reference.node.raft import Message, Raft, Stage
from clusters.reference.node.raft.types import Append, AppendReply, Chunk, VoteReply, VoteRequest
from clusters.reference.node.runtime import Runtime
from clusters.reference.node.server import Node
from clusters.reference.node.wire.messages import (
    Codec,
    Failed,
    MetaInvoke,
    PeerReply,
    PeerRequest,
    RaftBatch,
    Renew,
)

_ABSENT = "absent"  # of a group that the node has no member of, or not yet
_OF_METASTORAGE = (MetaInvoke, Renew)


class ReferenceStates:
    """``harness.protocols.coverage.StateReader``. ``program`` makes the nodes that it looks at."""

    def __init__(self) -> None:
        self._nodes: dict[str, Components] = {}

    def program(self, config: Config, runtime: Runtime) -> Node:
        """The node of ``config``, which this reader knows once it has recovered."""
        return _KnownNode(config, runtime, self._nodes)

    def received(self, node: str, payload: bytes) -> Iterator[tuple[str, str]]:
        """See ``StateReader``. Pings are left out: they say the same all the time."""
        components = self._nodes.get(node)
        if components is None:
            return
        try:
            frame = Codec.peer.decode(payload)
        except (msgspec.DecodeError, RecursionError):
            return
        if isinstance(frame, RaftBatch):
            groups = components.host.groups
            for name, message in frame.messages:
                group = groups.get(name)
                which = name if name == METASTORAGE else "partition"
                if group is None:
                    yield f"{which} {type(message).__name__}", _ABSENT
                else:
                    yield f"{which} {_of_raft(message, group.raft)}", _of_group(group)
        elif isinstance(frame, PeerRequest):
            body = frame.body
            partition = getattr(body, "partition", None)
            if partition is not None:
                yield type(body).__name__, self._of_partition(components, partition)
            elif isinstance(body, _OF_METASTORAGE):
                yield type(body).__name__, _of_member(components, METASTORAGE)
        elif isinstance(frame, PeerReply):
            answer = frame.body
            code = f" {answer.code}" if isinstance(answer, Failed) else ""
            yield f"{type(answer).__name__}{code}", ""

    def state(self, node: str, partition: int | None) -> str:
        """See ``StateReader``."""
        components = self._nodes.get(node)
        if components is None:
            return _ABSENT
        if partition is not None:
            return self._of_partition(components, partition)
        every = {_of_member(components, METASTORAGE)}
        every |= {self._of_partition(components, number) for number in components.replicas.replicas}
        # What is special about it: a node follows in most groups at any time.
        words = {word for state in every for word in state.split()} - {"follower"}
        return " ".join(sorted(words))

    def _of_partition(self, components: Components, partition: int) -> str:
        replica = components.replicas.replicas.get(partition)
        if replica is None:
            return _ABSENT
        primary = replica.primary
        words = [replica.group.raft.role.value]
        if primary.open:
            words.append("primary")
            if primary.locks.waiting:
                words.append("waiting")
        if replica.partition.prepared:
            words.append("prepared")
        return " ".join(words)


class _KnownNode(Node):
    def __init__(self, config: Config, runtime: Runtime, known: dict[str, Components]) -> None:
        super().__init__(config, runtime)
        self._name, self._known = config.node, known

    async def recover(self) -> Components:
        self._known.pop(self._name, None)
        components = await super().recover()
        self._known[self._name] = components
        return components


def _of_member(components: Components, name: str) -> str:
    group = components.host.groups.get(name)
    return _ABSENT if group is None else _of_group(group)


def _of_group(group: Group) -> str:
    raft = group.raft
    words = [raft.role.value]
    if raft.stage is not Stage.STABLE:
        words.append(raft.stage.value)
    if raft.sending_snapshot:
        words.append("sending-snapshot")
    if group.incoming is not None:
        words.append("installing")
    if raft.last_index > raft.commit_index:
        words.append("uncommitted")
    return " ".join(words)


def _of_raft(message: Message, raft: Raft) -> str:
    """The message with what decides how it is taken: its term beside that of the member, and
    whether it agrees.
    """
    name = type(message).__name__
    age = "old " if message.term < raft.term else "new " if message.term > raft.term else ""
    match message:
        case VoteRequest(pre=pre):
            return f"{age}{'pre-' if pre else ''}{name}"
        case VoteReply(pre=pre, granted=granted):
            return f"{age}{'pre-' if pre else ''}{name} {'granted' if granted else 'refused'}"
        case Append(entries=entries, previous_index=before):
            # What it would replace, what it repeats, and what it leaves a gap before.
            place = "gap" if before > raft.last_index else ""
            place = place or ("behind" if before < raft.last_index else "next")
            return f"{age}{name} {place}{'' if entries else ' empty'}"
        case AppendReply(refused=refused):
            return f"{age}{name}{' refused' if refused else ''}"
        case Chunk(last=last):
            return f"{age}{name}{' last' if last else ''}"
        case _:
            return f"{age}{name}"
