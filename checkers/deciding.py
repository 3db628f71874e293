"""Anomalies that the lattice of models does not know, decided by the checker that knows them."""

from __future__ import annotations

from collections.abc import Mapping

from checkers.models import breaks, implied_by
from harness.checking import Anomaly
from harness.outcome import Outcome


def decided(
    anomalies: Mapping[str, Anomaly], rules_out: Mapping[str, tuple[str, ...]], model: str
) -> tuple[Outcome, tuple[str, ...]]:
    """What ``anomalies`` mean under ``model``, and the reasons.

    ``rules_out`` names the weakest models that each contradicts. Those that ``checkers.models``
    knows already decide there.
    """
    holds = implied_by(model)
    broken = {
        name: anomaly
        for name, anomaly in sorted(anomalies.items())
        if not breaks(name, model) and not holds.isdisjoint(rules_out.get(name, ()))
    }
    reasons = [
        f"{n} ({a.count}) breaks {model}: {a.examples[0]['text']}" for n, a in broken.items()
    ]
    return (Outcome.VIOLATION if broken else Outcome.VALID), tuple(reasons)
