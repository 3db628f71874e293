"""Histories of Jepsen's as files, written in every layout that there is."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

Op = dict[str, Any]


def txn(type_: str, process: Any, value: Any, **more: Any) -> Op:
    return {"type": type_, "f": "txn", "value": value, "process": process, **more}


def register(type_: str, process: int, f: str, value: Any, **more: Any) -> Op:
    return {"type": type_, "f": f, "value": value, "process": process, **more}


def timed(ops: list[Op]) -> list[Op]:
    """The operations with the index and the time that Jepsen gives them."""
    return [op | {"time": 1000 * (i + 1), "index": i} for i, op in enumerate(ops)]


def small() -> list[Op]:
    """Two clients, an append that is read, one that fails, one that nobody knows of."""
    return timed(
        [
            txn("invoke", 0, [["append", 3, 1], ["r", 4, None]]),
            txn("invoke", 1, [["append", 3, 2]]),
            txn("ok", 0, [["append", 3, 1], ["r", 4, None]]),
            txn("fail", 1, [["append", 3, 2]], error="conflict"),
            txn("invoke", 1, [["r", 3, None], ["append", 4, 7]]),
            txn("invoke", 0, [["r", 3, None]]),
            txn("info", 1, [["r", 3, None], ["append", 4, 7]], error="timeout"),
            txn("ok", 0, [["r", 3, [1]]]),
        ]
    )


def generated(count: int, seed: int = 7) -> list[Op]:
    """``count`` transactions of a strict store, one effect at a time, by five clients."""
    draw = random.Random(seed)
    lists: dict[int, list[int]] = {}
    open_: dict[int, tuple[str, list[Any]]] = {}
    ids = list(range(5))
    ops: list[Op] = []
    while len(ops) < 2 * count:
        slot = draw.randrange(len(ids))
        process = ids[slot]
        if process in open_:
            end, steps = open_.pop(process)
            ops.append(txn(end, process, steps))
            if end == "info":
                ids[slot] += len(ids)
            continue
        asked, done = [], []
        end = draw.choices(("ok", "fail", "info"), (8, 1, 1))[0]
        for _ in range(draw.randint(1, 4)):
            key = draw.randrange(6) + len(ops) // 200 * 6
            seen = lists.setdefault(key, [])
            if draw.random() < 0.5:
                asked.append(["r", key, None])
                done.append(["r", key, list(seen) if end == "ok" else None])
            else:
                step = ["append", key, len(ops) * 4 + len(asked)]
                asked.append(step)
                done.append(step)
                if end == "ok":
                    seen.append(step[2])
        ops.append(txn("invoke", process, asked))
        open_[process] = (end, done)
    return timed(ops)


def edn(value: Any, *, comma: str = ", ") -> str:
    """``value`` as Jepsen prints it; strings that name something become keywords."""
    match value:
        case None:
            return "nil"
        case bool():
            return "true" if value else "false"
        case str():
            return f":{value}" if value.isidentifier() else json.dumps(value)
        case list():
            return f"[{' '.join(edn(part, comma=comma) for part in value)}]"
        case dict():
            return f"{{{comma.join(f':{k} {edn(v, comma=comma)}' for k, v in value.items())}}}"
        case _:
            return str(value)


def edn_lines(ops: list[Op]) -> str:
    return "".join(edn(op) + "\n" for op in ops)


def edn_records(ops: list[Op]) -> str:
    return "".join(f"#jepsen.history.Op{edn(op)}\n" for op in ops)


def edn_vector(ops: list[Op]) -> str:
    return f"[{chr(10).join(f' {edn(op)}' for op in ops)}]\n"


def edn_pretty(ops: list[Op]) -> str:
    """As a pretty-printer breaks it: a field a line, a comment, no commas."""
    shown = [edn(op, comma="\n   ").replace(" [[", "\n    [[") for op in ops]
    return ";; a history\n[" + "\n ".join(shown) + "]"


def json_lines(ops: list[Op]) -> str:
    return "".join(json.dumps(op, separators=(",", ":")) + "\n" for op in ops)


def json_spaced(ops: list[Op]) -> str:
    return "".join(json.dumps(op) + "\n" for op in ops)


def json_array(ops: list[Op]) -> str:
    return json.dumps(ops)


def json_pretty(ops: list[Op]) -> str:
    return json.dumps(ops, indent=2) + "\n"


def json_colons(ops: list[Op]) -> str:
    """Keywords kept as strings with their colon."""

    def kept(value: Any) -> Any:
        if isinstance(value, list):
            return [kept(part) for part in value]
        return f":{value}" if isinstance(value, str) and value.isidentifier() else value

    return "".join(json.dumps({k: kept(v) for k, v in op.items()}) + "\n" for op in ops)


LAYOUTS = (
    edn_lines,
    edn_records,
    edn_vector,
    edn_pretty,
    json_lines,
    json_spaced,
    json_array,
    json_pretty,
    json_colons,
)


def write(directory: Path, text: str, name: str = "history") -> Path:
    path = directory / name
    path.write_bytes(text.encode())
    return path
