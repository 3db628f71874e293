"""The kernels of each checker, their names held against each other before any of them runs.

Results, crashes and reasons are found by name: a kernel or checker of a plug-in under a name that
another bears would break that one, or take the place of what it found.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import attrs

from checkers.engine.kernel_output import describe
from checkers.engine.plugin_contract import kernels_of
from harness import plugins
from harness.errors import BrokenPlugin
from harness.protocols.checker import Checker, Kernel


@attrs.frozen(kw_only=True)
class Chain:
    """A checker with its kernels, or, without them, why it can't be asked."""

    checker: Checker
    kernels: tuple[Kernel, ...] = ()
    refused: str | None = None


def chains(checkers: Sequence[Checker], always: Collection[Checker]) -> tuple[Chain, ...]:
    """Return the chain of each of ``checkers``, in their order. Of two that share a name,
    firedrill's own stays, then the one that comes first; ``always`` are those of firedrill's
    checkers that have no entry point.
    """
    taken: dict[str, list[Checker | Kernel]] = {}
    found: dict[int, Chain] = {}
    own = {place for place, each in enumerate(checkers) if _is_own(each, always)}
    for place in sorted(range(len(checkers)), key=lambda place: place not in own):
        checker = checkers[place]
        try:
            kernels = kernels_of(checker)
            if place not in own:
                _require_free(checker, kernels, taken)
        # ``SystemExit`` as well: a broken checker must not end the others.
        except (Exception, SystemExit) as error:
            found[place] = Chain(checker=checker, refused=describe(error))
            continue
        found[place] = Chain(checker=checker, kernels=kernels)
        parts: tuple[Checker | Kernel, ...] = (checker, *kernels)
        for part in parts:
            taken.setdefault(part.name, []).append(part)
    return tuple(found[place] for place in range(len(checkers)))


def _is_own(checker: Checker, always: Collection[Checker]) -> bool:
    # By identity: a copy under the same name is another checker.
    if any(checker is each for each in always):
        return True
    return plugins.own("checkers", checker.name) is checker


def _require_free(
    checker: Checker,
    kernels: tuple[Kernel, ...],
    taken: Mapping[str, Collection[Checker | Kernel]],
) -> None:
    """Raise ``BrokenPlugin`` where a name is that of another kernel or checker. An equal kernel is
    the same one: checkers share its result.
    """
    if checker.name in taken and checker not in taken[checker.name]:
        raise BrokenPlugin(f"name {checker.name!r}: another checker or kernel bears it already")
    within: dict[str, Kernel] = {}
    for kernel in kernels:
        others = taken.get(kernel.name, (within.setdefault(kernel.name, kernel),))
        if kernel not in others:
            what = "another checker or kernel bears this name already"
            raise BrokenPlugin(f"kernel {kernel.name!r}: {what}")
