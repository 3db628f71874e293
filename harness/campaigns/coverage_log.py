"""Coverage as a value, and the log that a run writes it into.

A feature is ``event | state | fault``, and the same with ``x10`` where it came that often: a run in
which a rare thing happens again and again is worth keeping. Under several faults an event counts
with each, since their sets would make nearly every run new. A fault on the node itself counts by
its effects, those elsewhere as one.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable
from functools import cache

import msgspec

from harness.history.records import FaultState, FaultTransition
from harness.protocols.coverage import Features, StateOf
from harness.protocols.fault_kinds import BUILT_IN

CALM, ELSEWHERE = "", "elsewhere"
OFTEN = (10,)
_LEVEL = 9  # compressed once a run, and kept for good
_texts = msgspec.json.Decoder(list[str])
# In force from the injection until the heal is proven: what it sets right takes time.
_BEGIN = (FaultState.INJECTING,)
_END = (FaultState.HEALED,)


class CoverageLog:
    """Collects the features of one run."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[str, str, str]] = Counter()
        self._in_force: dict[int, tuple[str, tuple[str, ...]]] = {}  # kind and nodes, by fault
        # By node, as far as it was asked for.
        self._under: dict[str, tuple[str, ...]] = {}
        self._state_of: StateOf | None = None

    def strike(self, state_of: StateOf) -> None:
        """See ``harness.protocols.coverage.CoverageSink``."""
        self._state_of = state_of

    def came(self, event: str, state: str, node: str) -> None:
        """See ``harness.protocols.coverage.CoverageSink``."""
        under = self._under.get(node)
        if under is None:
            under = self._under[node] = self._faults_on(node)
        for fault in under:
            self._seen[event, state, fault] += 1

    def changed(self, transition: FaultTransition) -> None:
        """A fault entered a state."""
        if transition.state in _BEGIN:
            # As it strikes: each node in its state, under the faults before it.
            if self._state_of is not None:
                for node in transition.nodes:
                    self.came(f"fault {transition.kind}", self._state_of(node), node)
            self._in_force[transition.fault] = (transition.kind, transition.nodes)
        elif transition.state in _END:
            self._in_force.pop(transition.fault, None)
        else:
            return
        self._under.clear()  # found again where it is asked for: messages are many, changes are few

    def features(self) -> Features:
        """Everything up to now."""
        found = set()
        for parts, count in self._seen.items():
            text = " | ".join(parts)
            found.add(text)
            found.update(f"{text} x{least}" for least in OFTEN if count >= least)
        return frozenset(found)

    def encoded(self) -> bytes:
        """The features, as ``encode`` does."""
        return encode(self.features())

    def _faults_on(self, node: str) -> tuple[str, ...]:
        found = {
            _effects(kind) if node in nodes else ELSEWHERE
            for kind, nodes in self._in_force.values()
        }
        return tuple(sorted(found)) or (CALM,)


@cache
def _effects(kind: str) -> str:
    """The effects of a built-in kind, of another one its name."""
    known = BUILT_IN.get(kind)
    return kind if known is None else "&".join(sorted(effect.value for effect in known.effects))


def encode(features: Iterable[str]) -> bytes:
    """Encode ``features`` for a ledger or a corpus; equal ones are equal bytes."""
    return zlib.compress(msgspec.json.encode(sorted(features)), _LEVEL)


def decode(content: bytes) -> Features:
    """Decode what ``encode`` returned; of nothing, none. Raises ``ValueError`` for other bytes."""
    if not content:
        return frozenset()
    try:
        return frozenset(_texts.decode(zlib.decompress(content)))
    except (zlib.error, msgspec.DecodeError) as error:
        raise ValueError(f"expected encoded features: {error}") from error
