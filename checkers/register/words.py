"""Sentences for the anomalies of a register."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def of_finding(row: Row) -> str:
    """Format one row of ``register.findings`` as a sentence."""
    return _FORMS[row["form"]](row)


def _nobody(row: Row) -> str:
    return (
        f"garbage read: T{row['txns'][0]} found {row['value']} in register {row['key']}, which "
        "nobody wrote"
    )


def _aborted(row: Row) -> str:
    reader, writer = row["txns"]
    return (
        f"aborted read (G1a): T{reader} found {row['value']} in register {row['key']}, which "
        f"T{writer} wrote and then failed"
    )


def _early(row: Row) -> str:
    reader, writer = row["txns"]
    return (
        f"not linearizable: T{reader} read {row['value']} from register {row['key']} and had ended "
        f"before T{writer}, the only write of it, began"
    )


def _overlap(row: Row) -> str:
    first, last, other_first, other_last = row["txns"]
    return (
        f"not linearizable: register {row['key']} must have held {_value(row['value'])} all the "
        f"time {_span(first, last)}, and {_value(row['other'])} all the time "
        f"{_span(other_first, other_last)}, but these times overlap"
    )


def _inside(row: Row) -> str:
    first, last, other = row["txns"]
    return (
        f"not linearizable: register {row['key']} must have held {_value(row['value'])} all the "
        f"time {_span(first, last)}, but T{other}, which wrote {_value(row['other'])}, can only "
        "have taken effect within that time"
    )


def _search(row: Row) -> str:
    txn = row["txns"][0]
    what = f"read {_value(row['value'])}"
    if row["other"] is not None:
        what = f"set {row['other']} where it found {_value(row['value'])}"
    held = " or ".join(_value(value) for value in row["held"])
    return (
        f"not linearizable: no order of the operations on register {row['key']} explains that "
        f"T{txn} {what}: when it ended, the register held {held}, and nothing that was still open "
        "changes that"
    )


def _span(first: int, last: int) -> str:
    since = "from the beginning" if first < 0 else f"from the end of T{first}"
    return f"{since} to the start of T{last}"


def _value(value: int | None) -> str:
    return "nothing" if value is None else str(value)


_FORMS = {
    "nobody": _nobody,
    "aborted": _aborted,
    "early": _early,
    "overlap": _overlap,
    "inside": _inside,
    "search": _search,
}
