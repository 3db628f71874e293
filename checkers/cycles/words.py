"""A cycle in words, step by step, ending in the contradiction."""

from __future__ import annotations

from typing import Any

_PROMISES = {
    "G0": "write cycle (G0): the appends of these transactions are interleaved",
    "G1c": "circular information flow (G1c): these transactions saw each other's appends",
    "G-single-item": "read skew (G-single-item): a transaction saw another only in part",
    "G-nonadjacent-item": "no snapshot (G-nonadjacent-item): these transactions read states that "
    "no snapshots explain",
    "G2-item": "write skew (G2-item): these transactions read what the others were overwriting",
}
_ORDERS = {
    "": "",
    "-process": ", with a process's own order",
    "-realtime": ", with what was acknowledged before",
}


def promise(anomaly: str) -> str:
    """Return the promise that a cycle of this name breaks, in a clause."""
    for suffix in ("-process", "-realtime", ""):
        base = anomaly.removesuffix(suffix) if suffix else anomaly
        if base in _PROMISES and anomaly == base + suffix:
            return _PROMISES[base] + _ORDERS[suffix]
    return anomaly


def explain(
    anomaly: str, steps: list[dict[str, Any]], operations: dict[int, dict[str, Any]]
) -> str:
    """Describe the whole cycle, one sentence for each step."""
    told = [_step(step, operations) for step in steps]
    last = "yet " + told[-1] if len(told) > 1 else told[-1]
    return f"{promise(anomaly)}: {'; '.join([*told[:-1], last])}: a contradiction"


def _step(step: dict[str, Any], operations: dict[int, dict[str, Any]]) -> str:
    source, target = step["source"], step["target"]
    before = f"T{source} is before T{target}, because "
    match step["kind"]:
        case "ww":
            own = _only_append(operations[source], step["key"])
            after = f"an append by T{source}" if own is None else f"T{source} appended {own}"
            return (
                f"{before}T{target} appended {step['element']} to key {step['key']} after {after}"
            )
        case "wr":
            element = step["element"]
            if element is None:
                element = _only_append(operations[source], step["key"])
            what = "an append by" if element is None else f"the append of {element} by"
            return f"{before}T{target} read {what} T{source} to key {step['key']}"
        case "rw":
            return (
                f"{before}T{source} read key {step['key']} without T{target}'s append of "
                f"{step['element']}"
            )
        case "process":
            return f"{before}process {operations[source]['process']} ran it first"
        case _:
            return f"{before}it completed before T{target} was invoked"


def _only_append(operation: dict[str, Any], key: int) -> int | None:
    """Return the element that the operation appended to ``key``, where it appended exactly one."""
    appended = [value for f, k, value in operation["ops"] if f == "append" and k == key]
    return appended[0] if len(appended) == 1 else None
