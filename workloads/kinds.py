"""The kind of a read-only transaction, among the kinds for which the store declares a promise."""

from __future__ import annotations

from random import Random
from typing import Annotated

from msgspec import Meta

from harness.errors import PlanError
from harness.protocols.client import READ_WRITE
from harness.protocols.workload import WorkloadSetting

ReadKinds = Annotated[tuple[str, ...], Meta(min_length=1, max_length=8)]
ORDINARY: ReadKinds = (READ_WRITE,)


def check_kinds(kinds: ReadKinds, setting: WorkloadSetting) -> None:
    """Raise ``PlanError`` for a kind that the store does not have."""
    for kind in kinds:
        if kind not in setting.kinds:
            known = ", ".join(setting.kinds)
            raise PlanError(
                "workload.read_kinds", f"expected kinds of this store: {known} (got {kind!r})"
            )


def drawn_kind(kinds: ReadKinds, draw: Random) -> str:
    """Draw one of ``kinds``, each as often as it is listed; a single kind uses no draw."""
    return kinds[0] if len(kinds) == 1 else draw.choice(kinds)
