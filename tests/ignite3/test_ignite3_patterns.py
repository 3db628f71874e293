"""What somebody has to see in a node's log: lines that nodes of release 3.1.0 wrote in drills, cut
where nothing is read.
"""

from __future__ import annotations

import pytest

from clusters.ignite3.system import LOG_PATTERNS
from harness.run.log_patterns import matches

LINES = {
    "critical": "[FailureManager] Critical system error detected. Will be handled accordingly to "
    "configured handler [hnd=NoOpFailureHandler",
    "forced-reset": "[GroupUpdateRequest] Force update metastore pending partitions key "
    "[key=zone.assignments.pending.20_part_0, partition=0, zone=20, newVal=AssignmentsQueue",
    "stale": "[HandshakeManagerUtils] Rejecting handshake: n5:5d2e9bcd-ba98-4ccd is stale, node "
    "should be restarted so that other nodes can connect",
    "state-machine-error": "Error [type=ERROR_TYPE_STATE_MACHINE, status=Status[ESTATEMACHINE"
    "<10002>: StateMachine meet critical error when applying one or more tasks since index=5265",
    "unreadable-row": "Caused by: java.lang.NullPointerException: Cannot invoke "
    '"org.apache.ignite.internal.tx.TransactionMeta.txState()" because "transactionMeta" is null',
    "locks-left": "[TxCleanupRequestSender] First cleanup attempt failed (the transaction outcome "
    "is not affected)",
    "update-given-up": "[ReplicaManager] Failed to process delayed response "
    "[request=ReadWriteSingleRowReplicaRequestImpl [commitPartitionId=ZonePartitionIdMessageImpl",
    "out-of-memory": "java.lang.OutOfMemoryError: Java heap space",
}


@pytest.mark.parametrize("pattern", LOG_PATTERNS, ids=lambda pattern: pattern.name)
def test_each_pattern_finds_its_line_and_no_other(pattern) -> None:
    every = [line.encode() for line in LINES.values()]

    found = [list(LINES)[place] for place in matches(every, pattern)]

    assert found == [pattern.name]
