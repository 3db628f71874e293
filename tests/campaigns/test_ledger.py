"""The ledger: every result a line that counts only whole, for one state of the code."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from harness.campaigns.cell import CellResult, RunStats
from harness.campaigns.ledger import Ledger, past_results
from harness.errors import HarnessError
from harness.exit_codes import Outcome


def result(seed: int, outcome: Outcome = Outcome.VALID, **more: object) -> CellResult:
    given = {"key": f"k{seed}", "seed": seed, "name": "n", "workload": "bank", "outcome": outcome}
    return CellResult(**(given | more))  # type: ignore[arg-type]


def known(path: Path, code: str = "code-1") -> dict[str, CellResult]:
    return Ledger.read(path, code).known


def test_a_ledger_knows_what_this_code_came_to_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "campaign.jsonl"
    assert known(path) == {}
    one = result(1, stats=RunStats(ok=3, hits={"kill": {"voter": 2}}), coverage=b"\x00\xff")
    Ledger(path, "code-1").add(one)
    Ledger(path, "code-2").add(result(2))

    assert known(path) == {"k1": one}
    assert known(path, "code-2") == {"k2": result(2)}


def test_a_torn_last_line_is_cut_and_takes_no_other_with_it(tmp_path: Path) -> None:
    path = tmp_path / "campaign.jsonl"
    Ledger(path, "code-1").add(result(1))
    whole = path.read_bytes()
    Ledger(path, "code-1").add(result(2))
    second = path.read_bytes()[len(whole) :]

    for size in range(len(second)):
        path.write_bytes(whole + second[:size])
        assert known(path) == {"k1": result(1)}, size
        Ledger(path, "code-1").add(result(3))
        assert known(path) == {"k1": result(1), "k3": result(3)}, size
    path.write_bytes(second[:-1] * 2000)  # longer than what is read at once
    Ledger(path, "code-1").add(result(3))
    assert known(path) == {"k3": result(3)}


@pytest.mark.parametrize("first", [Outcome.VIOLATION, Outcome.VALID])
def test_of_a_cell_that_two_campaigns_ran_at_once_a_violation_counts(
    first: Outcome, tmp_path: Path
) -> None:
    path = tmp_path / "campaign.jsonl"
    second = Outcome.VALID if first is Outcome.VIOLATION else Outcome.VIOLATION
    one, other = Ledger.read(path, "code-1"), Ledger.read(path, "code-1")
    one.add(result(1, first))
    other.add(result(1, second))

    assert known(path)["k1"].outcome is Outcome.VIOLATION
    # Run again on purpose, it is what it came to last.
    again = Ledger(path, "code-1", again=True)
    again.add(result(1, Outcome.VALID))
    assert known(path)["k1"].outcome is Outcome.VALID
    again.add(result(1, Outcome.UNKNOWN))
    assert known(path)["k1"].outcome is Outcome.UNKNOWN


def test_a_line_that_was_changed_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "campaign.jsonl"
    Ledger(path, "code-1").add(result(1, Outcome.VIOLATION))
    Ledger(path, "code-1").add(result(2))
    text = path.read_bytes()
    path.write_bytes(text.replace(b'"violation"', b'"valid"'))

    assert known(path) == {"k2": result(2)}
    path.write_bytes(text)
    assert known(path).keys() == {"k1", "k2"}


def test_a_line_nested_without_limit_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "campaign.jsonl"
    Ledger(path, "code-1").add(result(1))
    deep = b"[" * 100_000 + b"]" * 100_000
    path.write_bytes(b'{"code":"code-1","result":' + deep + b',"crc":1}\n' + path.read_bytes())

    assert known(path) == {"k1": result(1)}
    assert past_results(path) == [("code-1", result(1))]


def test_a_ledger_that_is_a_fifo_or_a_link_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/etc/passwd")

    for name, kind in (("fifo", "a FIFO"), ("link", "a symbolic link")):
        with pytest.raises(HarnessError, match=f"it is {kind}, expected a regular file"):
            known(tmp_path / name)


def test_a_line_of_another_version_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "campaign.jsonl"
    older = {"code": "code-1", "result": msgspec.to_builtins(result(1))}
    path.write_bytes(msgspec.json.encode(older) + b"\n\xff\xfe\n[]\n")

    assert known(path) == {}


@pytest.mark.parametrize("more", [{"outcome": Outcome.HARNESS_ERROR}, {"interrupted": True}])
def test_a_cell_without_a_verdict_is_run_again_later_and_not_at_once(
    more: dict[str, object], tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path / "campaign.jsonl", "code-1")
    broken = result(1, **({"outcome": Outcome.VALID} | more))  # type: ignore[arg-type]
    ledger.add(broken)

    assert ledger.known == {"k1": broken}
    assert known(ledger.path or Path()) == {}
    ledger.add(result(1))
    ledger.add(broken)  # of --again
    assert known(ledger.path or Path()) == {"k1": result(1)}


def test_a_disk_that_refuses_is_named(tmp_path: Path) -> None:
    (tmp_path / "campaign.jsonl").mkdir()

    with pytest.raises(
        HarnessError, match=r"write .*campaign.jsonl.*the seed's result is not kept"
    ):
        Ledger(tmp_path / "campaign.jsonl", "code-1").add(result(1))
    with pytest.raises(HarnessError, match=r"read .*campaign.jsonl.*no seed counts as known"):
        Ledger.read(tmp_path / "campaign.jsonl", "code-1")


def test_a_ledger_without_a_file_remembers_all_the_same() -> None:
    ledger = Ledger()
    ledger.add(result(1))

    assert ledger.known == {"k1": result(1)}
