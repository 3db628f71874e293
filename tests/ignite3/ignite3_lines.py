"""Lines as nodes of release 3.1.0 write them, shortened where nothing is read."""

from __future__ import annotations

THREAD = "%n2%JRaft-Request-Processor-0"
ASSIGNED = (
    "Assignment [consistentId=n3, isPeer=true], Assignment [consistentId=n2, isPeer=true], "
    "Assignment [consistentId=n4, isPeer=false]"
)
BEGAN = "Starting node: [name=n2, workDir=/var/lib/x, configPath=/var/lib/x/node.conf]"
ELECTED = "Node <20_part_3/n2> become leader of group, term=4, conf=n2,n3,n5, oldConf=."
METASTORAGE_ELECTED = (
    "Node <metastorage_group/n2> become leader of group, term=2, conf=n1,n2,n3,n5/learner, "
    "oldConf=."
)
MANAGEMENT_ELECTED = "Node <cmg_group/n2> become leader of group, term=1, conf=n1,n2,n3, oldConf=."
DEFAULT_ZONE_ELECTED = "Node <0_part_3/n2> become leader of group, term=4, conf=n2, oldConf=."
STEPPED_DOWN = (
    "Node <20_part_3/n2> steps down when alive nodes don't satisfy quorum, term=4, "
    "deadNodes=n5,n3, conf=n2,n3,n5."
)
LEASE = (
    "Lease accepted [group=20_part_3, leaseStartTime=HybridTimestamp [physical=2026-11-21 "
    "15:35:44:008 +0000, logical=0, composite=117655164944908288]]."
)
PENDING = (
    "Update metastore pending partitions key [key=zone.assignments.pending.20_part_3, partition=3, "
    f"zone=20/DRILL, newVal=AssignmentsQueue [queue=LinkedList [Assignments [nodes=HashSet "
    f"[{ASSIGNED}], force=false, timestamp=1, fromReset=false]]], timestamp=HybridTimestamp [x]]"
)
STABLE = f"Rebalance finished [zonePartitionId=20_part_3, appliedPeers=[{ASSIGNED}]]"
ASKED = (
    "Sending changePeersAndLearnersAsync request for group=20_part_3 to peers=[Peer "
    "[consistentId=n3, idx=0], Peer [consistentId=n2, idx=0]] and learners=[Peer "
    "[consistentId=n4, idx=0]] with leader term=4"
)
STARTED = (
    "Start new raft node=RaftNodeId [groupId=20_part_3, peer=Peer [consistentId=n2, idx=0]] with "
    "initial configuration=PeersAndLearners [peers=SetN [Peer [consistentId=n3, idx=0], Peer "
    "[consistentId=n2, idx=0]], learners=SetN [Peer [consistentId=n4, idx=0]]]"
)
LEFT = (
    "Node removed from logical topology [node={id=16d2, name=n4, address=198.18.0.13:7400}, "
    "topology=LogicalTopologySnapshot [version=6, nodes=SetN [{id=42e5, name=n3, "
    "address=198.18.0.12:7400}, {id=cf68, name=n2, address=198.18.0.11:7400}], clusterId=9ec4]]"
)
REFUSED = (
    "Handshake rejected by initiator: n2:f731913f-ef34-4857 is stale, node should be restarted so "
    "that other nodes can connect"
)


def line(
    message: str, at: str = "15:42:21:796", day: str = "2026-11-21", zone: str = "+0000"
) -> str:
    """A line of the log that says ``message``."""
    return f"{day} {at} {zone} [INFO][{THREAD}][SomeClass] {message}"


def log(*lines: str) -> bytes:
    """The bytes of a log with these lines."""
    return "".join(f"{text}\n" for text in lines).encode()
