"""The checker of transactions that read and write registers, with Elle's semantics.

Each value is written once to a register, so that a read tells which transaction it saw; of the
order of versions only a part is known (``register_edges``).
"""

from __future__ import annotations

import attrs
import numpy as np
import pyarrow as pa

from checkers.cycles.cycle_anomalies import first_cycles, inferred, judged
from checkers.cycles.kernel import CYCLES
from checkers.engine.arrays import INFO
from checkers.engine.transactions import NOBODY, OBSERVED, OBSERVED_TABLE
from checkers.lists.witness import anybody_unknown
from checkers.rw_register.register_edges import edges, tails
from checkers.rw_register.register_findings import findings, sentence
from checkers.rw_register.register_operations import NO_WRITE, register_ops
from harness.protocols.checker import Exchange, Kernel, Lookup, Part, Tables
from harness.protocols.setting import Setting


def find_witnesses(tables: Tables, setting: Setting) -> dict[str, pa.Table]:
    """Return ``lists.observed``: the writers of unknown outcome whose values were read."""
    ops = register_ops(tables, setting)
    reads, type_ = ops.reads, ops.txns.type
    read = np.flatnonzero(reads.write != NO_WRITE)
    writer, reader = ops.writes.txn[reads.write[read]], reads.txn[read]
    told = (type_[writer] == INFO) & (writer != reader)
    writer, reader = writer[told], reader[told]
    sure = ops.txns.committed[reader]
    told = sure | (type_[reader] == INFO)
    pairs = np.stack([writer, np.where(sure, NOBODY, reader)])[:, told]
    writer, reader = np.unique(pairs, axis=1)
    columns = [pa.array(writer), pa.array(reader)]
    return {OBSERVED_TABLE: pa.Table.from_arrays(columns, schema=OBSERVED)}


WITNESSES = Kernel(
    name="rw-witnesses",
    exchange=Exchange.EARLY,
    run=find_witnesses,
    needed=anybody_unknown,
    numbers={OBSERVED_TABLE: ("writer", "reader")},
)


def infer(tables: Tables, setting: Setting) -> dict[str, pa.Table]:
    """Return ``lists.findings``, ``.edges``, ``.tails`` and ``.counts`` of the registers given: the
    names under which the kernel of cycles takes them.
    """
    ops = register_ops(tables, setting)
    return {"lists.findings": findings(ops), **inferred(edges(ops), tails(ops), ops.txns)}


INFERENCE = Kernel(
    name="rw-register",
    exchange=Exchange.KEY,
    run=infer,
    numbers={
        "lists.findings": ("txn", "other"),
        "lists.edges": ("source", "target"),
        "lists.tails": ("txn",),
    },
)


@attrs.frozen
class RwRegister:
    """Isolation anomalies of transactions on registers: those of single keys, and cycles."""

    name: str = "rw-register"
    kernels: tuple[Kernel, ...] = (WITNESSES, INFERENCE, CYCLES)

    def judge(self, tables: Tables, _setting: Setting, lookup: Lookup) -> Part:
        """Return every anomaly, of any model; the model decides later which of them count."""
        steps = first_cycles(tables["cycles.steps"])
        return judged(tables, tables["lists.findings"], steps, lookup, sentence)


CHECKER = RwRegister()
