"""The undo journal survives its writer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from harness.errors import HarnessError, MalformedHistory
from harness.protocols.cluster import LinkShape
from nemesis.journal import FileJournal, Intent, pending


def intent(fault: int) -> Intent:
    return Intent(
        fault=fault,
        kind="partition",
        target="n1",
        nodes=("n1",),
        grudge=(("n1", "n2"), ("n2", "n1")),
        shapes=(LinkShape(link=("n1", "n2"), loss=0.3, delay_s=0.1),),
        at_ns=5,
    )


def test_an_intent_is_readable_by_a_later_process_until_it_is_cleared(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = FileJournal(tmp_path / "undo")
        await journal.intend(intent(2))
        await journal.intend(intent(1))
        assert pending(tmp_path / "undo") == (intent(1), intent(2))

        await journal.clear(1)
        await journal.clear(1)
        assert pending(tmp_path / "undo") == (intent(2),)

    asyncio.run(scenario())


def test_what_a_cancelled_caller_began_is_still_cleared_by_the_next_call(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = FileJournal(tmp_path)
        caller = asyncio.ensure_future(journal.intend(intent(1)))
        await asyncio.sleep(0)
        caller.cancel()
        await journal.clear(1)

        assert pending(tmp_path) == ()

    asyncio.run(scenario())


def test_a_run_without_a_journal_has_nothing_to_undo(tmp_path: Path) -> None:
    assert pending(tmp_path / "undo") == ()
    asyncio.run(FileJournal(tmp_path / "undo").clear(1))


@pytest.mark.parametrize("content", [b"", b"{", b'{"fault": "x"}', b"\xff" * 9])
def test_a_file_that_is_no_intent_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "fault-000001.json").write_bytes(content)

    with pytest.raises(MalformedHistory, match="fault-000001"):
        pending(tmp_path)


def test_a_place_that_cannot_be_written_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(HarnessError, match="file"):
        asyncio.run(FileJournal(tmp_path / "file").intend(intent(1)))
