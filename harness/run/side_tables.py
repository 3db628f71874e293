"""The tables beside a history that a verdict rests on, or that explain it."""

from __future__ import annotations

import attrs
import pyarrow as pa

from harness.history.layout import KEYS, KEYS_FILE
from harness.run import controller_health
from harness.run.change_recorder import ASSIGNMENTS, ASSIGNMENTS_FILE, TOPOLOGY, TOPOLOGY_FILE
from harness.run.claim_log import CLAIMS, CLAIMS_FILE, JUDGED, JUDGED_FILE
from harness.run.log_lines import LINES_FILE, LOG_LINES
from harness.run.node_usage import USAGE, USAGE_FILE
from harness.run.state_log import LOGS, LOGS_FILE, STATES, STATES_FILE

KEYS_TABLE, CONTROLLER, LINES = "keys", "controller", "log_lines"


@attrs.frozen
class TableFile:
    """A table's file in the run directory, its schema, and the column that says when a row was
    true, where it has one.
    """

    file: str
    columns: pa.Schema
    time: str | None = None


SIDE_TABLES: dict[str, TableFile] = {
    "states": TableFile(STATES_FILE, STATES, "asked_ns"),
    "logs": TableFile(LOGS_FILE, LOGS),
    "claims": TableFile(CLAIMS_FILE, CLAIMS, "at_ns"),
    "claims_judged": TableFile(JUDGED_FILE, JUDGED),
    "assignments": TableFile(ASSIGNMENTS_FILE, ASSIGNMENTS, "at_ns"),
    "topology": TableFile(TOPOLOGY_FILE, TOPOLOGY, "at_ns"),
    "usage": TableFile(USAGE_FILE, USAGE, "at_ns"),
    CONTROLLER: TableFile("controller.parquet", controller_health.SCHEMA, "at_ns"),
    LINES: TableFile(LINES_FILE, LOG_LINES),
    KEYS_TABLE: TableFile(f"history/{KEYS_FILE}", KEYS),
}
"""By name."""
