"""A cycle in words, step by step, ending in the contradiction.

The checkers write the sentence of a finding with it, and the report its steps, so that no sentence
is taken apart again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from harness.history.records import Value
from harness.protocols.consistency_models import CAUSAL_REVERSE
from harness.protocols.finding import Dependency, RecordedOperation

_PROMISES = {
    "G0": "write cycle (G0): the {writes} of these transactions are interleaved",
    "G1c": "circular information flow (G1c): these transactions saw each other's {writes}",
    "G-single-item": "read skew (G-single-item): a transaction saw another only in part",
    "G-nonadjacent-item": "no snapshot (G-nonadjacent-item): these transactions read states that "
    "no snapshots explain",
    "G2-item": "write skew (G2-item): these transactions read what the others were overwriting",
}
_REVERSED = (
    "causal reverse: a transaction that promises no real time saw what came later and missed what "
    "had been acknowledged before it"
)
_ORDERS = {
    "": "",
    "-process": ", with a process's own order",
    "-realtime": ", with what was acknowledged before",
}


def promise(anomaly: str, operations: Iterable[RecordedOperation] = ()) -> str:
    """Return the promise that a cycle of this name, through ``operations``, breaks, in a clause."""
    if anomaly == CAUSAL_REVERSE:
        return _REVERSED
    for suffix in ("-process", "-realtime", ""):
        base = anomaly.removesuffix(suffix) if suffix else anomaly
        if base in _PROMISES and anomaly == base + suffix:
            writes = "writes" if _on_registers(operations) else "appends"
            return _PROMISES[base].format(writes=writes) + _ORDERS[suffix]
    return anomaly


def _on_registers(operations: Iterable[RecordedOperation]) -> bool:
    """Whether transactions overwrite the values of registers, and append to no lists."""
    return any(op.f == "w" for operation in operations for op in operation.ops)


def explain(
    anomaly: str,
    cycle: Sequence[Dependency],
    operations: Iterable[RecordedOperation],
    named: Callable[[int], str] = str,
) -> str:
    """Describe the whole cycle, one clause for each step; ``named`` returns the name of a key."""
    shown = tuple(operations)
    return sentence(anomaly, steps(cycle, shown, named), shown)


def sentence(
    anomaly: str, told: Iterable[str], operations: Iterable[RecordedOperation] = ()
) -> str:
    """Join the broken promise and the steps of a cycle."""
    return f"{promise(anomaly, operations)}: {'; '.join(told)}"


def steps(
    cycle: Sequence[Dependency],
    operations: Iterable[RecordedOperation],
    named: Callable[[int], str] = str,
) -> tuple[str, ...]:
    """Describe each step of the cycle; the last one ends in the contradiction. As ``explain``."""
    by_txn = {operation.txn: operation for operation in operations}
    step_of = _register_step if _on_registers(by_txn.values()) else _step
    told = [step_of(step, by_txn.get(step.source), named) for step in cycle]
    *first, last = told or [""]
    return (*first, f"{'yet ' if first else ''}{last}: a contradiction")


def _step(step: Dependency, source: RecordedOperation | None, named: Callable[[int], str]) -> str:
    key = "?" if step.key is None else named(step.key)
    before = f"T{step.source} is before T{step.target}, because "
    match step.kind:
        case "ww":
            own = _only_append(source, step.key)
            after = (
                f"an append by T{step.source}" if own is None else f"T{step.source} appended {own}"
            )
            return f"{before}T{step.target} appended {step.element} to key {key} after {after}"
        case "wr":
            element = step.element if step.element is not None else _only_append(source, step.key)
            what = "an append by" if element is None else f"the append of {element} by"
            return f"{before}T{step.target} read {what} T{step.source} to key {key}"
        case "rw":
            return (
                f"{before}T{step.source} read key {key} without T{step.target}'s append of "
                f"{step.element}"
            )
        case _:
            return f"{before}{_order(step, source)}"


def _register_step(
    step: Dependency, source: RecordedOperation | None, named: Callable[[int], str]
) -> str:
    key = "?" if step.key is None else named(step.key)
    before = f"T{step.source} is before T{step.target}, because "
    match step.kind:
        case "wr":
            return f"{before}T{step.target} read its {step.element} from register {key}"
        case "rw":
            touched = "wrote" if _only_writes(source, step.key) else "read"
            return (
                f"{before}it {touched} register {key} before T{step.target} wrote {step.element} "
                "to it"
            )
        case _:
            return f"{before}{_order(step, source)}"


def _order(step: Dependency, source: RecordedOperation | None) -> str:
    if step.kind == "process":
        return f"process {source.process if source else '?'} ran it first"
    return f"it completed before T{step.target} was invoked"


def _only_writes(operation: RecordedOperation | None, key: int | None) -> bool:
    ops = operation.ops if operation else ()
    return {op.f for op in ops if op.key == key} == {"w"}


def _only_append(operation: RecordedOperation | None, key: int | None) -> Value:
    """Return the element that the operation appended to ``key``, where it appended exactly one."""
    ops = operation.ops if operation else ()
    appended = [op.value for op in ops if op.f == "append" and op.key == key]
    return appended[0] if len(appended) == 1 else None
