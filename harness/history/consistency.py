"""What the manifest of a run says against itself, its plan or its tables.

Sums show what was changed after sealing. A run whose sums were made anew has none of that: what is
left to notice is that two of its parts can't both be true. No such run is judged to be valid.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec
import pyarrow as pa

from harness.history.manifest import SEALED
from harness.history.run_directory import Manifest, RunDirectory
from harness.protocols.faults import PlannedFault
from harness.text import inert, seconds

# Of a run that came to its end, those that judgements read: the drive, its end, the last reads.
MARKS = ("drive", "heal", "final-reads")


def contradictions(run: RunDirectory, manifest: Manifest) -> tuple[str, ...]:
    """A sentence for each contradiction in ``manifest``, or with the files beside it; of a history
    that was recorded elsewhere, only of those in its state.
    """
    found = list(_of_state(run, manifest))
    if isinstance(manifest.origin, msgspec.UnsetType):
        found += [*_of_plan(run, manifest), *_of_phases(manifest)]
    return tuple(found)


def _of_state(run: RunDirectory, manifest: Manifest) -> Iterator[str]:
    if manifest.state == SEALED:
        if manifest.cut_ns is not None:
            at = seconds(manifest.cut_ns)
            yield f"the manifest tells of a run that is whole, and that it was cut at {at}"
        if manifest.recovered is True:
            yield "the manifest tells of a run that is whole, and that its controller died"
        if manifest.unread is True:
            yield "the manifest tells of a run that is whole, and of chunks that could not be read"
    if manifest.unread is not True and run.unread.exists():
        yield f"{run.unread.name}/ holds chunks that were not read, of which the manifest is silent"


def _of_plan(run: RunDirectory, manifest: Manifest) -> Iterator[str]:
    name = run.plan.name
    if name in manifest.checksums:
        return
    if not run.plan.exists():
        yield f"{name} is gone, and was never sealed: nothing tells what drove the run"
    # Runs of the first versions, which have no sums of logs either, have none of their plan.
    elif not isinstance(manifest.logs, msgspec.UnsetType):
        yield f"{name} is not in the manifest: nothing shows that it is what drove the run"


def _of_phases(manifest: Manifest) -> Iterator[str]:
    marks = manifest.phases
    for (name, at_ns), (after, later_ns) in pairwise(marks):
        if later_ns < at_ns:
            times = f"at {seconds(later_ns)} and {seconds(at_ns)}"
            yield f"the manifest has phase {inert(after)} behind {inert(name)}, {times}"
    if is_complete(manifest):
        lacking = [name for name in MARKS if name not in dict(marks)]
        if lacking:
            yield f"the manifest tells of a run that is whole, and lacks phase {', '.join(lacking)}"


def is_complete(manifest: Manifest) -> bool:
    """Tell whether the run came to its planned end, by its manifest."""
    return manifest.state == SEALED and not (manifest.interrupted or manifest.trouble)


def missing_faults(
    manifest: Manifest, schedule: Sequence[PlannedFault], faults: pa.Table
) -> tuple[str, ...]:
    """A sentence for faults of the ``schedule`` of which a run that came to its end has no row in
    ``faults``, or one of another kind: also a fault whose moment never came has one.
    """
    if not is_complete(manifest) or not schedule:
        return ()
    kinds = dict(zip(faults["fault"].to_pylist(), faults["kind"].to_pylist(), strict=True))
    wrong = [n for n, planned in enumerate(schedule) if kinds.get(n) != planned.kind]
    if not wrong:
        return ()
    first = f"fault {wrong[0]}, a {schedule[wrong[0]].kind}"
    more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return (f"the plan has {first}{more}, and the table of faults has none such",)
