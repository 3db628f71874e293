"""The checker of banks: every read of a whole bank holds the total, and no balance is negative."""

from __future__ import annotations

from typing import Any

import attrs
import pyarrow as pa

from checkers.attribution import explain_operations
from checkers.bank.accounts import LAST
from checkers.bank.kernels import JUDGED, SUMS
from checkers.columns import ints
from checkers.kernel import EXAMPLES_MAX, Kernel, Lookup, Part, Setting, Tables
from harness.checking import Anomaly
from harness.outcome import Outcome

Row = dict[str, Any]

TOTAL, NEGATIVE, NIL = "bank-total", "negative-balance", "nil-balance"
NOT_CLAIMED = (
    "of a bank only totals, balances and what was transferred at the end are tested: that the "
    "store is {model} is not claimed"
)


@attrs.frozen
class Bank:
    """Wrong totals and negative balances, each with the fault that is nearest."""

    name: str = "bank"
    kernels: tuple[Kernel, ...] = (SUMS, LAST, JUDGED)

    def judge(self, tables: Tables, setting: Setting, lookup: Lookup) -> Part:
        """``unknown`` where no bank was set up, or none was ever read as a whole."""
        banks, wrong = tables["bank.banks"], tables["bank.wrong"]
        anomalies = {}
        kinds = (
            (TOTAL, "off", _wrong_total),
            (NEGATIVE, "negative", _negative),
            (NIL, "nil", _nil),
        )
        for name, column, tell in kinds:
            rows = wrong.filter(wrong.column(column))
            if rows.num_rows:
                examples = _examples(rows, tell, tables["faults"], lookup)
                anomalies[name] = Anomaly(count=rows.num_rows, examples=examples)
        if tables["bank.lost"].num_rows:
            anomalies["lost-write"] = _lost(tables, lookup)
        doubts = _doubts(banks)
        return Part(
            outcome=Outcome.UNKNOWN if doubts else Outcome.VALID,
            anomalies=anomalies,
            reasons=doubts or (NOT_CLAIMED.format(model=setting.model),),
            statistics={"bank": _statistics(tables)},
            tables={"bank_wrong": wrong},
        )


def _doubts(banks: pa.Table) -> tuple[str, ...]:
    if not banks.num_rows:
        return ("no bank: no transaction wrote accounts that it had not read",)
    unread = banks.filter(pa.array(ints(banks, "reads") == 0)).to_pylist()
    return tuple(
        f"vacuous: the bank of {row['size']} accounts that T{row['bank']} set up was never read "
        "as a whole"
        for row in unread
    )


def _statistics(tables: Tables) -> Row:
    def total(table: str, column: str) -> int:
        return int(ints(tables[table], column).sum())

    return {
        "banks": tables["bank.banks"].num_rows,
        "accounts": total("bank.banks", "size"),
        "whole_reads": total("bank.banks", "reads"),
        "wrong_reads": tables["bank.wrong"].num_rows,
        "unverified_accounts": total("bank.unverified", "accounts"),
    }


def _lost(tables: Tables, lookup: Lookup) -> Anomaly:
    lost = tables["bank.lost"].sort_by("key")
    examples = []
    for row in lost.slice(0, EXAMPLES_MAX).to_pylist():
        txns = [row["last"], row["read"]]
        found = lookup.operations(tuple(txns))
        shown = [found[txn] for txn in txns]
        example = {"text": _lost_write(row), "txns": txns, "keys": [row["key"]]}
        fault = explain_operations(shown, tables["faults"])
        examples.append(example | {"operations": shown} | fault)
    return Anomaly(count=lost.num_rows, examples=tuple(examples))


def _examples(rows: pa.Table, tell: Any, faults: pa.Table, lookup: Lookup) -> tuple[Row, ...]:  # noqa: ANN401
    shown = rows.slice(0, EXAMPLES_MAX).to_pylist()
    operations = lookup.operations(tuple(row["txn"] for row in shown))
    return tuple(_example(row, tell(row), operations[row["txn"]], faults) for row in shown)


def _example(row: Row, text: str, operation: Row, faults: pa.Table) -> Row:
    example = {
        "text": text,
        "txns": [row["txn"]],
        "keys": sorted({step[1] for step in operation["ops"]}),
        "total": row["total"],
        "expected": row["expected"],
        "operations": [operation],
    }
    return example | explain_operations([operation], faults)


def _wrong_total(row: Row) -> str:
    empty = f", and {row['empty']} of them nothing at all" if row["empty"] else ""
    return (
        f"wrong total: in what T{row['txn']} read, the bank of {row['size']} accounts held "
        f"{row['total']} instead of {row['expected']}{empty}"
    )


def _negative(row: Row) -> str:
    return (
        f"negative balance: T{row['txn']} read {row['least']} in account {row['least_key']}, which "
        "no transfer may overdraw"
    )


def _nil(row: Row) -> str:
    return (
        f"nil balance: T{row['txn']} read nothing in {row['empty']} of the {row['size']} accounts, "
        "all of which had been given a balance"
    )


def _lost_write(row: Row) -> str:
    least, most = row["least"], row["most"]
    due = f"{least}" if least == most else f"{least} to {most}"
    return (
        f"lost write: account {row['key']} held {row['balance']} when T{row['read']} read it last, "
        f"but its first balance and {row['transfers']} acknowledged transfers make {due}"
    )


CHECKER = Bank()
