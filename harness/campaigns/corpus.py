"""The corpus of a search: a directory of plans that reached something, each with what it reached.

A file is a plan that can be run as it is; its last lines, comments of TOML, hold the features and a
sum over all before. Its name is the key of its plan as it is written there, so that equal plans are
one file, two corpora are merged by copying one into the other, a file that was changed is told by
its name, and one that was written before plans had another key more is as good as before.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs

from harness.campaigns.cell import Cell, key_of
from harness.campaigns.coverage_log import decode, encode
from harness.errors import PlanError
from harness.history.durable_files import disk_failure, write_atomically
from harness.history.regular_files import is_regular, open_regular
from harness.plan.plan import Plan, dumps, loads
from harness.protocols.coverage import Features

SUFFIX = ".toml"
_REACHED, _SUM = "# reached: ", "# crc32: "


@attrs.frozen(kw_only=True)
class Entry:
    """A plan and what it reached. ``cost_s`` is about how long a core takes for it, beside the
    others: a figure of the simulated run, so that it is the same each time.
    """

    plan: Plan
    features: Features
    cost_s: float = 1.0

    @property
    def key(self) -> str:
        """The key of its plan, and the name of a file that is written for it."""
        return Cell(plan=self.plan).key


@attrs.define
class Corpus:
    """The plans of ``root``, where there is one, by key. ``damaged`` are files that hold no such
    plan, or one that can't be read any more: they are left out, and stay.
    """

    root: Path | None = None
    entries: dict[str, Entry] = attrs.field(factory=dict)
    damaged: tuple[Path, ...] = ()
    _files: dict[str, list[Path]] = attrs.field(init=False, factory=dict)  # several of other forms

    @classmethod
    def read(cls, root: Path) -> Corpus:
        """Return the corpus in ``root``, empty where that does not exist. Raises
        ``HarnessError``.
        """
        corpus, damaged = cls(root), []
        try:
            paths = sorted(root.glob(f"*{SUFFIX}"))
            for path in paths:
                entry = None
                # A link or a FIFO is no plan that was kept here.
                if is_regular(path):
                    with open_regular(path) as stream:
                        entry = _decoded(stream.read(), path.stem)
                if entry is None:
                    damaged.append(path)
                else:
                    corpus.entries[entry.key] = entry
                    corpus._files.setdefault(entry.key, []).append(path)
        except OSError as error:
            raise disk_failure("read", root, error, "no plan of the corpus is known") from error
        corpus.damaged = tuple(damaged)
        return corpus

    def add(self, entry: Entry) -> None:
        """Keep ``entry``. Raises ``HarnessError`` where the disk refuses."""
        self.entries[entry.key] = entry
        if self.root is None:
            return
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_failure("make", self.root, error, "the corpus is not kept") from error
        path = self.root / f"{entry.key}{SUFFIX}"
        write_atomically(path, _encoded(entry))
        files = self._files.setdefault(entry.key, [])
        if path not in files:
            files.append(path)

    def minimise(self) -> int:
        """Remove the plans that reach nothing which others, that cost less, do not reach, too;
        return how many. Raises ``HarnessError``.
        """
        kept = {entry.key for entry in fewest_for_all(self.entries.values())}
        gone = [key for key in self.entries if key not in kept]
        for key in gone:
            del self.entries[key]
            for path in self._files.pop(key, ()):
                try:
                    path.unlink(missing_ok=True)
                except OSError as error:
                    raise disk_failure("remove", path, error, "the corpus grows") from error
        return len(gone)


def fewest_for_all(entries: Iterable[Entry]) -> list[Entry]:
    """Return some of ``entries`` that reach together what all do: for each feature the cheapest
    that reaches it, the rarest features first.
    """
    every = sorted(entries, key=lambda entry: (entry.cost_s, entry.key))
    reaching: dict[str, list[Entry]] = {}
    for entry in every:
        for feature in entry.features:
            reaching.setdefault(feature, []).append(entry)
    covered: set[str] = set()
    chosen: dict[str, Entry] = {}
    # The only plan for a rare feature has to be chosen anyway, and may cover the common ones.
    for feature in sorted(reaching, key=lambda feature: (len(reaching[feature]), feature)):
        if feature not in covered:
            best = reaching[feature][0]  # the cheapest, since ``every`` is in that order
            chosen[best.key] = best
            covered |= best.features
    return list(chosen.values())


def reach_counts(entries: Iterable[Entry]) -> Mapping[str, int]:
    """Return by feature how many of ``entries`` reach it."""
    counts: dict[str, int] = {}
    for entry in entries:
        for feature in entry.features:
            counts[feature] = counts.get(feature, 0) + 1
    return counts


def _encoded(entry: Entry) -> bytes:
    reached = base64.b64encode(encode(entry.features)).decode()
    # ``repr`` of the cost is read back as the same number: the choice of parents depends on it.
    body = f"{dumps(entry.plan)}\n{_REACHED}{entry.cost_s!r} {reached}\n".encode()
    return body + f"{_SUM}{zlib.crc32(body):08x}\n".encode()


def _decoded(content: bytes, key: str) -> Entry | None:
    # From the end: a text within the plan may look like the mark.
    body, mark, crc = content.rpartition(_SUM.encode())
    if not mark or crc != f"{zlib.crc32(body):08x}\n".encode():
        return None
    text, mark, last = body.rpartition(f"\n{_REACHED}".encode())
    # Not the key of the plan as it would be written now: its defaults may be others by then.
    if key_of(text) != key:
        return None
    cost, _, reached = last.strip().partition(b" ")
    try:
        return Entry(
            plan=loads(text.decode()),
            features=decode(base64.b64decode(reached, validate=True)),
            cost_s=float(cost),
        )
    except (PlanError, ValueError, binascii.Error):
        return None
