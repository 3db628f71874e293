"""The checker of banks: every read of a whole bank holds the total, and no balance is negative."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import msgspec
import pyarrow as pa

from checkers.bank.by_generation import GENERATIONS, KEPT_BY_KEY
from checkers.bank.imported import IMPORTED, IMPORTED_JUDGED
from checkers.bank.kernels import JUDGED, LAST, SUMS
from checkers.bank.suspects import Suspect, transfers_of
from checkers.engine.arrays import ints
from checkers.explain.fault_attribution import KnownFaults
from checkers.explain.fault_explanations import explain_operations
from checkers.explain.words import KeyNames
from harness.exit_codes import Outcome
from harness.protocols.checker import EXAMPLES_MAX, Kernel, Lookup, Part, Tables
from harness.protocols.consistency_models import (
    BANK_TOTAL,
    EMPTIED_BY_RESET,
    LOST_WRITE,
    MIXED_GENERATIONS,
    NEGATIVE_BALANCE,
)
from harness.protocols.finding import Finding, RecordedOperation
from harness.protocols.generations import trees_of
from harness.protocols.setting import Setting
from harness.protocols.verdict import Anomaly

Row = dict[str, Any]
Kinds = tuple[tuple[str, str, Callable[[Row], str]], ...]

NIL = "nil-balance"
UNEXPECTED, WRONG = "unexpected-key", "wrong-balance"
NOT_CLAIMED = (
    "of a bank only totals, balances and what was transferred at the end are tested: that the "
    "store is {model} is not claimed"
)

NOT_CLAIMED_IMPORTED = (
    "of a bank only totals, balances, and what transfers make between two reads are tested: that "
    "the store is {} is not claimed"
)


@attrs.frozen
class Bank:
    """Wrong totals and negative balances, each with the fault that is nearest."""

    name: str = "bank"
    kernels: tuple[Kernel, ...] = (
        *(SUMS, LAST, IMPORTED, KEPT_BY_KEY),
        *(GENERATIONS, JUDGED, IMPORTED_JUDGED),
    )

    def judge(self, tables: Tables, setting: Setting, lookup: Lookup) -> Part:
        """Return ``unknown`` where the history sets up no bank, or reads none as a whole."""
        # Blind writes set a bank up. A Jepsen history has none: only amounts to add, and whole
        # reads.
        if not tables["bank.banks"].num_rows and tables["bank.unset.accounts"].num_rows:
            return _judge_imported(tables, setting, lookup)
        banks, wrong = tables["bank.banks"], tables["bank.wrong"]
        kinds = (
            (BANK_TOTAL, "off", _wrong_total),
            (NEGATIVE_BALANCE, "negative", _negative),
            (NIL, "nil", _nil),
        )
        anomalies = _anomalies(wrong, kinds, tables, lookup)
        if BANK_TOTAL in anomalies:
            anomalies[BANK_TOTAL] = _with_suspects(anomalies[BANK_TOTAL], tables, lookup)
        if mixed := _mixed(tables, setting, lookup):
            anomalies[MIXED_GENERATIONS] = mixed
        if tables["bank.emptied"].num_rows:
            anomalies[EMPTIED_BY_RESET] = _emptied(tables, setting, lookup)
        if tables["bank.lost"].num_rows:
            anomalies[LOST_WRITE] = _lost(tables, lookup)
        doubts = _doubts(banks)
        return Part(
            outcome=Outcome.UNKNOWN if doubts else Outcome.VALID,
            anomalies=anomalies,
            reasons=doubts or (NOT_CLAIMED.format(model=setting.model),),
            statistics={"bank": _statistics(tables)},
            tables={"bank_wrong": wrong},
        )


def _judge_imported(tables: Tables, setting: Setting, lookup: Lookup) -> Part:
    """Judge a bank whose set-up is not in the history."""
    bank, wrong, moved = (tables[f"bank.unset.{name}"] for name in ("bank", "wrong", "moved"))
    accounts = tables["bank.unset.accounts"]
    kinds = (
        (BANK_TOTAL, "off", _wrong_total),
        (NEGATIVE_BALANCE, "negative", _negative),
        (NIL, "nil", _empty),
        (UNEXPECTED, "unexpected", _unexpected),
    )
    anomalies = _anomalies(wrong, kinds, tables, lookup)
    if moved.num_rows:
        anomalies[WRONG] = _pairs(moved, "before", _wrong_balance, tables, lookup)
    # A transfer is two ``add`` steps, one on each of its accounts.
    transfers = int(ints(accounts, "moves").sum()) // 2
    doubts = []
    if not bank.num_rows:
        doubts.append("vacuous: the bank was never read without an account that holds nothing")
    if not transfers:
        doubts.append("vacuous: no transfer was acknowledged")
    told = () if doubts else (_total_of(bank, setting), NOT_CLAIMED_IMPORTED.format(setting.model))
    row = bank.to_pylist()[0] if bank.num_rows else {"size": accounts.num_rows, "reads": 0}
    statistics = {
        "banks": 1,
        "accounts": row["size"],
        "whole_reads": row["reads"],
        "wrong_reads": wrong.num_rows,
        "transfers": transfers,
    }
    return Part(
        outcome=Outcome.UNKNOWN if doubts else Outcome.VALID,
        anomalies=anomalies,
        reasons=(*doubts, *told),
        statistics={"bank": statistics},
        tables={"bank_wrong": wrong},
    )


def _total_of(bank: pa.Table, setting: Setting) -> str:
    (row,) = bank.to_pylist()
    if setting.bank.total is not None:
        return f"the bank holds {row['expected']} together, as was said when it was imported"
    return (
        f"the bank holds {row['expected']} together, as T{row['first']} read first: the history "
        "does not tell of a set-up (--bank-total says another)"
    )


def _anomalies(wrong: pa.Table, kinds: Kinds, tables: Tables, lookup: Lookup) -> dict[str, Any]:
    """Return the anomalies of the wrong reads; a kind is its name, the column that marks it, and
    its formatter.
    """
    found = {}
    for name, column, tell in kinds:
        rows = wrong.filter(wrong.column(column))
        if rows.num_rows:
            examples = _examples(rows, tell, tables, lookup)
            found[name] = Anomaly(count=rows.num_rows, examples=examples)
    return found


def _doubts(banks: pa.Table) -> tuple[str, ...]:
    if not banks.num_rows:
        return ("no bank: no transaction wrote accounts that it had not read",)
    rows = banks.to_pylist()
    unread = (
        f"vacuous: the bank of {row['size']} accounts that T{row['bank']} set up was never read "
        "as a whole"
        for row in rows
        if not row["reads"]
    )
    reset = (
        f"{row['untested']} of {row['reads']} whole reads of the bank of {row['size']} accounts "
        f"that T{row['bank']} set up saw another total than its {row['expected']}: partitions were "
        "reset, and what they held before or after is not known"
        for row in rows
        if row["untested"]
    )
    return (*unread, *reset)


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


def _mixed(tables: Tables, setting: Setting, lookup: Lookup) -> Anomaly | None:
    """Return the generations whose accounts hold what their partition held at no moment before."""
    rows = [r for r in tables["bank.generations"].to_pylist() if not r["explained"]]
    if not rows:
        return None
    examples, known = [], KnownFaults.of(tables["faults"])
    for row in rows[:EXAMPLES_MAX]:
        reset = trees_of(setting.resets)[row["partition"]].resets[row["place"] - 1]
        found = lookup.operations(tuple(row["reads"][:EXAMPLES_MAX]))
        shown = tuple(found.values())
        examples.append(
            Finding(
                text=f"mixed generations: accounts of partition {row['partition']} held after its "
                f"reset to generation {reset.generation} what they held together at no moment "
                f"before it, as {', '.join(f'T{txn}' for txn in found)} read",
                txns=tuple(found),
                keys=tuple(row["keys"]),
                operations=shown,
                explained_by=explain_operations(shown, known),
                at_ns=reset.earliest_ns,
                details={"partition": row["partition"], "generation": reset.generation},
            )
        )
    return Anomaly(count=len(rows), examples=tuple(examples))


def _emptied(tables: Tables, setting: Setting, lookup: Lookup) -> Anomaly:
    """Return the accounts that hold nothing since their partition began anew, each with the first
    read that found it so.
    """
    order = [(name, "ascending") for name in ("partition", "place", "key", "read")]
    first: dict[tuple[int, int, int], Row] = {}
    for row in tables["bank.emptied"].sort_by(order).to_pylist():
        first.setdefault((row["partition"], row["place"], row["key"]), row)
    shown, named = list(first.values())[:EXAMPLES_MAX], KeyNames(tables)
    found = lookup.operations(tuple(dict.fromkeys(row["read"] for row in shown)))
    examples, known = [], KnownFaults.of(tables["faults"])
    for row in shown:
        reset = trees_of(setting.resets)[row["partition"]].resets[row["place"] - 1]
        read = found[row["read"]]
        examples.append(
            Finding(
                text=f"emptied by reset: account {named(row['key'])} held nothing when "
                f"T{row['read']} read it: permitted, generation {reset.generation} of partition "
                f"{row['partition']} began anew, since no copy was left and an operator asked for "
                "it",
                txns=(row["read"],),
                keys=(row["key"],),
                operations=(read,),
                explained_by=explain_operations(
                    (read,), known, since_ns=min(reset.earliest_ns, read.invoke_ns)
                ),
                at_ns=reset.earliest_ns,
                details={"partition": row["partition"], "generation": reset.generation},
            )
        )
    return Anomaly(count=len(first), examples=tuple(examples))


def _lost(tables: Tables, lookup: Lookup) -> Anomaly:
    return _pairs(tables["bank.lost"], "suspect", _lost_write, tables, lookup)


def _with_suspects(found: Anomaly, tables: Tables, lookup: Lookup) -> Anomaly:
    """Return wrong totals with the transfer, of those that may first show in each, whose amount
    equals what is too much or too little, where there is one.
    """
    rows = {row["txn"]: row for row in tables["bank.wrong"].to_pylist()}
    told, known = [], KnownFaults.of(tables["faults"])
    for finding in found.examples:
        row, (read,) = rows[finding.txns[0]], finding.operations
        suspects = transfers_of(row, read, tables["transactions"], lookup)
        if suspects:
            finding = _by_half(finding, row, suspects, read, KeyNames(tables), known)
        told.append(finding)
    return Anomaly(count=found.count, examples=tuple(told))


def _by_half(
    finding: Finding,
    row: Row,
    suspects: Sequence[Suspect],
    read: RecordedOperation,
    named: KeyNames,
    known: KnownFaults,
) -> Finding:
    first, shown = suspects[0], (suspects[0].transfer, read)
    amount = abs(row["excess"])
    much = "much" if row["excess"] > 0 else "little"
    alike = len(suspects) - 1
    which = ", of which the read shows one half" if first.half_shown else ""
    # A half in the read points to this transfer; by its amount alone the others fit as well.
    others = f" ({alike} more moved as much then)" if alike and not first.half_shown else ""
    text = (
        f"; the {amount} too {much} is the amount that T{first.transfer.txn} moved from account "
        f"{named(first.payer)} to {named(first.payee)}{which}{others}"
    )
    return msgspec.structs.replace(
        finding,
        text=finding.text + text,
        txns=(first.transfer.txn, *finding.txns),
        operations=shown,
        explained_by=explain_operations(shown, known),
    )


def _pairs(
    rows: pa.Table, earlier: str, tell: Callable[[Row], str], tables: Tables, lookup: Lookup
) -> Anomaly:
    """Return the accounts in which ``read`` contradicts the operation in the column ``earlier``."""
    # Rows come split by split; which examples are shown must not depend on how many there were.
    rows = rows.sort_by([("key", "ascending"), ("read", "ascending")])
    examples, named, known = [], KeyNames(tables), KnownFaults.of(tables["faults"])
    for row in rows.slice(0, EXAMPLES_MAX).to_pylist():
        txns = (row[earlier], row["read"])
        found = lookup.operations(txns)
        shown = tuple(found[txn] for txn in txns)
        finding = Finding(
            text=tell(named.within(row)),
            txns=txns,
            keys=(row["key"],),
            operations=shown,
            explained_by=explain_operations(shown, known),
        )
        examples.append(finding)
    return Anomaly(count=rows.num_rows, examples=tuple(examples))


def _examples(
    rows: pa.Table, tell: Callable[[Row], str], tables: Tables, lookup: Lookup
) -> tuple[Finding, ...]:
    shown = rows.slice(0, EXAMPLES_MAX).to_pylist()
    operations = lookup.operations(tuple(row["txn"] for row in shown))
    named, known = KeyNames(tables), KnownFaults.of(tables["faults"])
    return tuple(
        _finding(row, tell(named.within(row)), operations[row["txn"]], known) for row in shown
    )


def _finding(row: Row, text: str, operation: RecordedOperation, known: KnownFaults) -> Finding:
    return Finding(
        text=text,
        txns=(row["txn"],),
        keys=tuple(sorted({step.key for step in operation.ops})),
        operations=(operation,),
        # The money may have been lost or made at any time before the read.
        explained_by=explain_operations([operation], known, since_ns=0),
        details={"total": row["total"], "expected": row["expected"]},
    )


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


def _empty(row: Row) -> str:
    return f"nil balance: T{row['txn']} read nothing in {row['empty']} of {row['size']} accounts"


def _unexpected(row: Row) -> str:
    return (
        f"unexpected key: T{row['txn']} read account {row['strange']}, which was not in the first "
        "read of the bank and in no transfer"
    )


def _wrong_balance(row: Row) -> str:
    least, most, count = row["least"], row["most"], row["transfers"]
    due = f"{least}" if least == most else f"{least} to {most}"
    between = f"{count} acknowledged transfer{'s' * (count != 1)}"
    return (
        f"wrong balance: T{row['read']} read {row['balance']} in account {row['key']}, where "
        f"T{row['before']} had read {row['held']} before it and {between} in between make {due}"
    )


def _lost_write(row: Row) -> str:
    least, most = row["least"], row["most"]
    due = f"{least}" if least == most else f"{least} to {most}"
    return (
        f"lost write: account {row['key']} held {row['balance']} when T{row['read']} read it last, "
        f"but its first balance and {row['transfers']} acknowledged transfers make {due}"
        f"{_missing(row)}"
    )


def _missing(row: Row) -> str:
    """Name the transfer whose amount is missing, where there is one."""
    return (
        "" if row["amount"] is None else f": the {row['amount']:+} of T{row['suspect']} is missing"
    )


CHECKER = Bank()
