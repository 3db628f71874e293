"""The heartbeats of pairs of nodes over a ``Net``: every member stands for a node of its own."""

from __future__ import annotations

from raft_net import Net

from clusters.reference.node.rpc.coalesced_heartbeats import Receiver, Sender
from clusters.reference.node.wire.messages import HeartbeatAck

GROUP = "g"


class Pairs:
    """A connection from every member to every other one; a cut, or a crash, ends it."""

    def __init__(self, net: Net) -> None:
        self.net, self.ticks = net, 0
        self.open: dict[tuple[str, str], tuple[Sender, Receiver]] = {}
        self.opened = dict.fromkeys(net.names, 0)

    def run(self, ticks: int) -> None:
        """Each tick, then a beat of every pair, then everything that follows from both."""
        for _ in range(ticks):
            self.ticks += 1
            self.net.tick(*self.net.up())
            self.heartbeat()
            self.net.settle()

    def restart(self, name: str) -> None:
        self.net.crash(name)
        self.heartbeat()
        self.net.restart(name)
        self.opened[name] = self.ticks

    def heartbeat(self) -> None:
        names = self.net.names
        for source, to in ((a, b) for a in names for b in names if a != b):
            up = source in self.net.up() and to in self.net.up()
            if up and not {(source, to), (to, source)} & self.net.cuts:
                self.exchange(source, to)
            else:
                self.lose(source, to)

    def exchange(self, source: str, to: str) -> None:
        sender, _ = self.open.setdefault((source, to), (Sender(), Receiver()))
        leader = self.net.raft(source)
        self.answer(source, to, self.sent(source, to))
        assert leader.invariants() is None, leader.invariants()
        assert sender is self.open[(source, to)][0]

    def sent(self, source: str, to: str) -> HeartbeatAck:
        """A beat leaves and arrives; the answer to it."""
        sender, receiver = self.open[(source, to)]
        leader, follower = self.net.raft(source), self.net.raft(to)
        leads = {GROUP: leader.term} if leader.is_acking(to) else {}
        heartbeat = sender.heartbeat(self.ticks, leads)
        return receiver.take(heartbeat, lambda _, term: follower.observe_leader(source, term))

    def answer(self, source: str, to: str, answer: HeartbeatAck) -> None:
        leader = self.net.raft(source)
        claims, refused = self.open[(source, to)][0].answered(answer)
        for _, term in claims:
            leader.node_acked(to, term, answer.tick - self.opened[source])
        if refused:
            leader.unpair(to)

    def lose(self, source: str, to: str) -> None:
        if self.open.pop((source, to), None) is not None and source in self.net.up():
            self.net.raft(source).unpair(to)


def paired(size: int = 3, *, seed: int = 1, **settings: object) -> Pairs:
    """A group that ``n1`` leads, and has been quiet for a while."""
    net = Net(size, seed=seed, **settings)
    net.elect("n1")
    pairs = Pairs(net)
    # From here on ticks of the group and of the pairs are counted together.
    pairs.opened = {name: -net.raft(name).now for name in net.names}
    pairs.run(3)
    return pairs
