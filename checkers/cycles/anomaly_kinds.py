"""Kinds of cycles, and which of them implies the presence of another.

A kind is a base (the types of its dependencies) and an order (the other edges on the cycle):

================== =====================================================
base               dependencies on the cycle
================== =====================================================
G0                 ww
G1c                ww and wr, some wr
G-single-item      exactly one rw
G-nonadjacent-item several rw, never two in a row
G2-item            several rw, some two in a row
================== =====================================================

and nothing, ``-process`` or ``-realtime``. A cycle of these last two passes only transactions that
promise this order; one that needs it through others is a *causal reverse*, which is told only where
its component holds no cycle of a kind. Seeing a kind means that others are there too (Elle's
list, and what follows from it): G0 means G1c; G-single-item means G-nonadjacent-item, which means
G2-item; every base means the same with ``-process``, and that the same with ``-realtime``. So a
cycle without rw hides none that has one.
"""

from __future__ import annotations

import attrs
import numpy as np

from checkers.cycles.cyclic_core import HELPER, Core
from checkers.cycles.graph import Kind
from checkers.engine.arrays import Bools
from checkers.engine.transactions import Transactions
from harness.protocols.consistency_models import CAUSAL_REVERSE

G0, G1C, G_SINGLE, G_NONADJACENT, G2 = range(5)
BASES = ("G0", "G1c", "G-single-item", "G-nonadjacent-item", "G2-item")
PROCESS, REALTIME = 1, 2  # places in ``ORDERS``
ORDERS = ("", "-process", "-realtime")


@attrs.frozen(order=True)
class Class:
    """A kind of cycle: positions in ``BASES`` and ``ORDERS``. ``reverse``: any cycle of orders up
    to this one, through transactions of any kind.
    """

    base: int
    order: int
    reverse: bool = False

    @property
    def name(self) -> str:
        """As verdicts call it."""
        return CAUSAL_REVERSE if self.reverse else BASES[self.base] + ORDERS[self.order]

    def implied_by(self, other: Class) -> bool:
        """Tell whether ``other`` is this kind, or implies it."""
        if other.order > self.order:
            return False
        if self.base >= G_SINGLE:
            return G_SINGLE <= other.base <= self.base
        return other.base <= self.base


# Each kind after all kinds that imply it.
CLASSES = tuple(Class(base, order) for order in range(3) for base in range(5))


# By process alone where that is enough: a step along a process says more than one of time.
REVERSES = tuple(Class(G2, order, reverse=True) for order in (PROCESS, REALTIME))


def allowed(core: Core, txns: Transactions, kind: Class) -> Bools:
    """Return the edges that a cycle of ``kind`` may use."""
    kinds = [(Kind.WW,), (Kind.WW, Kind.WR)][kind.base > G0]
    if kind.base > G1C:
        kinds += (Kind.RW, Kind.GATE)
    if kind.order >= PROCESS:
        kinds += (Kind.PROCESS, Kind.RW_PROCESS)
    if kind.order >= REALTIME:
        kinds += (Kind.REALTIME, Kind.TIME, Kind.RW_REALTIME)
    fitting: Bools = np.isin(core.edges.kind, kinds)
    # Dependencies bind every transaction; the orders are promises that some kinds do not make.
    if kind.reverse or kind.order < PROCESS:
        return fitting
    promised = txns.real_time if kind.order == REALTIME else txns.in_session
    passed = (core.txn == HELPER) | promised[np.maximum(core.txn, 0)]
    fitting &= passed[core.edges.source] & passed[core.edges.target]
    return fitting
