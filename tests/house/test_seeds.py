"""The page that maps every heading of the five seeds to code and tests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "seeds.md"
NODE = ROOT / "clusters" / "reference" / "node"
NOTHING = {"to come", "no rule"}
DONE = (  # one heading, with its dash
    "When RaftGroupService#changePeersAsync done inside the raft group \u2013 update assignments, "
    "stable key and stop all redundant nodes"
)
HEADINGS = {
    "000": """
        Motivation
        Description
        Distribution zones configuration syntax
        Distribution zones configuration internals
        DATA_NODES_AUTO_ADJUST rules
        DATA_NODES_FILTER rule
        Data nodes evaluation rules
        Compatibility Matrix
        Override rules
        Retrieve distribution zones configuration
        Risks and Assumptions
        Discussion Links
        Reference Links
        Tickets
    """,
    "001": r"""
        Motivation
        Competitive Analysis
        Profiling current balancing procedure
        Rebalance procedure optimizations
        Possible partition file sending approaches
        Hot swap cache data storage
        Historical rebalance
        Catch-up temporary WAL
        Expected problems to be solved
        Preload entries from loaded partition file
        Proposed Changes (Hot swap with historical rebalance)
        Process Overview
        Components
        File transfer between nodes
        CommunicationSpi
        API: CommunicationListenerEx
        GridIoManager
        API: TransmissionHandler, TransmissionSender
        Copy partition on the fly
        Checkpointer
        Rebuild indexes
        Failover and Recovery
        FAIL\LEFT during rebalancing
        Topology change
        Activation\deactivation
        Unstable connection
        Crash recovery
        Phase-2
        Risks and Assumptions
        Discussion Links
        Reference Links
        Tickets
    """,
    "002": """
        [1] Affinity based rebalancing
        [2] Updates counter based rebalancing
        Update counter structure
        Range
        Update counter flow
    """,
    "003": """
        How to read this doc
        Rebalance algorithm
        Short algorithm description
        New metastore keys
        Operations, which can trigger rebalance
        Write new pending assignments (1)
        Start new raft nodes and initiate change peers (2)
        {done}
        Failover helpers
        Cleanup redundant raft nodes (3)
        Failover
        Metastore rebalance (not implemented yet)
        Further optimisations
        Adjustable changePeers
        Approach 1. Update the peers' list of current changePeers
        Approach 2. Cancel current changePeers and run new one
    """,
    "004": """
        Motivation
        Description
        Use Cases
        Example scenario illustrating HA mode functionality
        Key Considerations
        Requirements
        Assumptions and possible trade-offs
        Public API Changes
        Algorithm for phase 1
        Key outcomes
        Additional notes
        Phase 2
        Example 1
        Example 2
        Detailed algorithm on node restart
        Chain of assignments
        Start of the node
        Pending or stable raft topology is alive
        Chain unwind
        Result algorithm
        Optimisations
        Risks and Assumptions
        Discussion Links
        Reference Links
        Tickets
    """,
}


def rows(page: str) -> Iterator[tuple[str, str, str, str]]:
    """Seed, heading or rule, code and tests of each row."""
    seed = ""
    for line in page.splitlines():
        if line.startswith("## "):
            seed = line[3:6] if line[3:6].isdigit() else ""
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if seed and line.startswith("| ") and len(cells) == 3 and cells[1] != "code":
            yield seed, cells[0], cells[1], cells[2]


def written_tests() -> set[str]:
    return {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)\(", path.read_text())
    }


def offences(page: str, there: set[str]) -> list[str]:
    """What is wrong with ``page``: files and tests that do not exist, rows that say nothing."""
    found = []
    for seed, rule, code, shown in rows(page):
        files, names = re.findall(r"`([^`]+)`", code), re.findall(r"`([^`]+)`", shown)
        found += [f"{seed} {rule}: no file {file}" for file in files if not (NODE / file).is_file()]
        found += [f"{seed} {rule}: no test {name}" for name in names if name not in there]
        if not (files and names) and not (code == shown and code in NOTHING):
            found.append(f"{seed} {rule}: neither code with tests nor one of {sorted(NOTHING)}")
    return found


def test_every_heading_of_every_seed_is_there_in_its_order() -> None:
    page = PAGE.read_text()
    for seed, text in HEADINGS.items():
        expected = [line.strip() for line in text.replace("{done}", DONE).strip().splitlines()]
        bold = [rule[2:-2] for of, rule, *_ in rows(page) if of == seed and rule.startswith("**")]
        assert bold == expected, seed


def test_every_file_and_test_that_the_page_of_the_seeds_names_exists() -> None:
    page = PAGE.read_text()

    assert len(list(rows(page))) > 90
    assert offences(page, written_tests()) == []


def test_every_test_that_stands_anywhere_on_the_page_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))

    assert len(named) > 150
    assert named - written_tests() == set()


@pytest.mark.parametrize(
    ("code", "shown", "wrong"),
    [
        ("`raft/core.py`", "`test_there_is`", []),
        ("to come", "to come", []),
        ("no rule", "no rule", []),
        ("`raft/nothing.py`", "`test_there_is`", ["000 x: no file raft/nothing.py"]),
        ("`raft/core.py`", "`test_there_is_not`", ["000 x: no test test_there_is_not"]),
        ("`raft/core.py`", "to come", ["neither code with tests"]),
        ("to come", "`test_there_is`", ["neither code with tests"]),
        ("", "", ["neither code with tests"]),
    ],
)
def test_the_check_of_the_seeds_page_sees_an_offence(
    code: str, shown: str, wrong: list[str]
) -> None:
    page = f"## 000: a seed\n\n| x | {code} | {shown} |\n"

    found = offences(page, {"test_there_is"})

    assert len(found) == len(wrong)
    assert all(one in other for one, other in zip(wrong, found, strict=True))
