"""The cells that runs are compared in: what two runs must have in common beside their build."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from harness.text import inert
from results.compare.effect_thresholds import FIGURES
from results.store.run_entry import RunEntry, cell_key
from results.store.run_figures import Host

SIMULATED = "sim"
LABEL_CHARS = 240  # a mix of twenty faults has some 200
DIGEST_CHARS = 8


def labels(keys: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """Return a label for each of ``keys``, each its own; the setting only where all else is equal,
    and a digest of the key where its label is cut before what tells it from another.
    """
    every = list(dict.fromkeys(keys))
    short = {key: inert(" ".join(part for part in key[:-1] if part), LABEL_CHARS) for key in every}
    loaded = {key: f"{label} (load {key[-1]})" for key, label in short.items()}
    times, times_loaded = Counter(short.values()), Counter(loaded.values())
    found = {}
    for key in every:
        label = short[key] if times[short[key]] == 1 else loaded[key]
        found[key] = f"{label} (cell {_digest(key)})" if times_loaded[label] > 1 else label
    return found


def _digest(key: tuple[str, ...]) -> str:
    text = "\0".join(key).encode("utf-8", "backslashreplace")
    return hashlib.sha256(text).hexdigest()[:DIGEST_CHARS]


def frame(new: Sequence[RunEntry], base: Sequence[RunEntry], across: Iterable[str]) -> pd.DataFrame:
    """Return a row a run: ``side`` (``new`` or ``base``), ``run``, ``cell``, ``seed``, ``timed``
    (whether its times depend on its host), a column for each figure (a float, or missing), and the
    ``entry`` itself.
    """
    keys = {id(entry): cell_key(entry, across) for entry in (*new, *base)}
    names = labels(keys.values())
    rows = [
        _row(side, entry, names[keys[id(entry)]])
        for side, entries in (("new", new), ("base", base))
        for entry in entries
    ]
    columns = ["side", "run", "cell", "seed", "timed", *(f.name for f in FIGURES), "entry"]
    table = pd.DataFrame(rows, columns=columns)
    return table.astype({figure.name: "float64" for figure in FIGURES})


def _row(side: str, entry: RunEntry, cell: str) -> dict[str, Any]:
    figures = entry.figures
    values = {f.name: None if figures is None else figures.value(f.name) for f in FIGURES}
    return {
        "side": side,
        "run": entry.run,
        "cell": cell,
        # As text: a seed has more digits than a float holds, into which pandas makes missing ones.
        "seed": "" if entry.seed is None else str(entry.seed),
        "timed": entry.provider != SIMULATED,
        "entry": entry,
        **values,
    }


def host_of_side(entries: Sequence[RunEntry]) -> Host:
    """Return the host of runs: what all have in common, and the medians of their calibrators."""

    def common(name: str) -> Any:  # noqa: ANN401 (a field of a host)
        values = {getattr(entry.host, name) for entry in entries}
        return values.pop() if len(values) == 1 else Host.__struct_defaults__[FIELDS.index(name)]

    def middle(name: str) -> float | None:
        values = pd.Series([getattr(entry.host, name) for entry in entries], dtype="float64")
        known = values.dropna()
        return float(known.median()) if len(known) else None

    return Host(
        system=common("system"),
        architecture=common("architecture"),
        cores=common("cores"),
        memory_mib=common("memory_mib"),
        cpu_ms=middle("cpu_ms"),
        fsync_us=middle("fsync_us"),
    )


FIELDS = Host.__struct_fields__
CPU_APART = 1.15  # the calibrator of one idle machine stays within some percent
FSYNC_APART = 2.0  # syncs of one disk vary much more


def hosts_differ(new: Host, base: Host) -> str:
    """Return why times measured on these hosts can't be compared; empty where they can."""
    for name in ("architecture", "cores", "system"):
        one, other = getattr(new, name), getattr(base, name)
        if not one or one != other:
            return f"{name}: {one or 'not known'} and {other or 'not known'}"
    for name, most, words in (("cpu_ms", CPU_APART, "CPU"), ("fsync_us", FSYNC_APART, "fsync")):
        one, other = getattr(new, name), getattr(base, name)
        if one is None or other is None:
            return "a side has no calibrator's figures"
        if max(one, other) > most * min(one, other):
            return f"the calibrator's {words}: {one:g} and {other:g} ({name.partition('_')[2]})"
    return ""
