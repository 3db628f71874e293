"""All checks in their order, and their run over one cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress

import attrs

from harness.conform import client_conformance, declared, fault_conformance, forwarded_commits
from harness.conform.bench import Bench, CheckFailure, Mark, NotTried, Result, on_time
from harness.errors import FiredrillError, HarnessError, UsageError
from harness.tasks import Late, within


@attrs.frozen(kw_only=True)
class Check:
    """``run`` returns its observation, or raises ``CheckFailure`` or ``NotTried``. It leaves the
    cluster whole where it returns. ``relies`` is the rule that the harness relies on, in a
    sentence.

    ``limit_s`` bounds the whole check, which fails past it.
    """

    name: str
    relies: str
    run: Callable[[Bench], Awaitable[str]]
    limit_s: float = 120.0


# Before any node runs.
BEFORE = (
    Check(
        name="declaration",
        relies="promises are data that checkers can judge by",
        run=declared.declaration,
    ),
    Check(name="errors", relies="each code has a row of its own", run=declared.errors),
    Check(name="options", relies="a slip in a plan is refused by its path", run=declared.options),
    Check(name="partitions", relies="keys have their places", run=declared.partitions),
    Check(name="program", relies="a node's program follows from its place", run=declared.program),
    Check(
        name="set-up deadline",
        relies="set_up ends at its deadline",
        run=client_conformance.set_up_deadline,
    ),
)

# On a cluster that is set up.
UP = (
    Check(
        name="serves",
        relies="a cluster that is set up serves everywhere",
        run=client_conformance.serves,
    ),
    Check(
        name="transactions",
        relies="a transaction sees its own writes, nobody sees others' open ones",
        run=client_conformance.transactions,
    ),
    Check(
        name="identity",
        relies="names and timestamps tell commits apart",
        run=client_conformance.identity,
    ),
    Check(name="kinds", relies="every promised kind can be had", run=client_conformance.kinds),
    Check(name="roles", relies="targets can be resolved", run=fault_conformance.roles),
    Check(
        name="contention", relies="definite errors are definite", run=client_conformance.contention
    ),
    Check(
        name="lost answer",
        relies="an unanswered commit is uncertain, and never tried again",
        run=client_conformance.lost_answer,
    ),
    Check(
        name="lost connection",
        relies="a transaction ends with its connection",
        run=client_conformance.lost_connection,
    ),
    Check(
        name="lost further on",
        relies="an answer lost between two nodes is as uncertain as one lost to a client",
        run=forwarded_commits.lost_further_on,
        limit_s=240.0,
    ),
    Check(name="deadlines", relies="a cancelled call ends", run=client_conformance.deadlines),
    Check(
        name="refused", relies="a dead node is an error of the store", run=fault_conformance.refused
    ),
    Check(name="kill bites", relies="a killed node answers nobody", run=fault_conformance.kill),
    Check(
        name="pause bites", relies="a paused node acknowledges nothing", run=fault_conformance.pause
    ),
    Check(
        name="partition bites",
        relies="the store's traffic takes the links that are cut",
        run=fault_conformance.partition,
        limit_s=240.0,
    ),
    Check(
        name="under faults",
        relies="definite errors are definite, acknowledgements hold, nothing is done twice",
        run=fault_conformance.under_faults,
        limit_s=240.0,
    ),
    Check(
        name="recover",
        relies="recover makes the cluster whole",
        run=fault_conformance.recover,
    ),
    Check(
        name="recover deadline",
        relies="recover says so where the cluster is not whole",
        run=client_conformance.recover_deadline,
        limit_s=180.0,
    ),
    Check(name="events", relies="events are told once, on the run's clock", run=declared.events),
    Check(name="codes", relies="each error is a StoreError with a row", run=declared.codes),
)

SUITE = BEFORE + UP
# Those of ``UP`` that only judge the answers recorded so far.
WITHOUT_CLUSTER = ("events", "codes")


async def conform(bench: Bench, chosen: Sequence[str] = ()) -> AsyncGenerator[Result]:
    """The results of the ``chosen`` checks (all by default), one after the other. The nodes'
    machines are up, and no program is installed yet. Raises ``HarnessError`` where the cluster
    can't be set up at all.
    """
    wanted = chosen or tuple(check.name for check in SUITE)
    cluster, system = bench.cluster, bench.system
    for check in BEFORE:
        if check.name in wanted and check.name != "set-up deadline":
            yield await _one(bench, check)
    for node in cluster.nodes:
        await bench.provider.install(node, system.program(node, cluster))
    if "set-up deadline" in wanted:
        # It needs the programs in their places, though it starts none.
        yield await _one(bench, BEFORE[-1])
    chosen_up = [check for check in UP if check.name in wanted]
    if not chosen_up:
        return
    deadline_s = asyncio.get_running_loop().time() + bench.ready_s
    try:
        await on_time("set_up", system.set_up(cluster, bench.provider, deadline_s), deadline_s)
    except CheckFailure as error:
        first, *rest = chosen_up
        yield Result(name=first.name, mark=Mark.BROKEN, text=f"there is no cluster: {error}")
        for check in rest:
            yield _untried(check, "there is no cluster")
        return
    watching = asyncio.ensure_future(bench.watch())
    try:
        for check in chosen_up:
            if bench.stuck and check.name not in WITHOUT_CLUSTER:
                yield _untried(check, f"the cluster could not be made whole: {bench.stuck}")
            else:
                yield await _one(bench, check)
    finally:
        watching.cancel()
        # What it could not fetch is in ``unheard``, by which ``events`` was judged.
        with suppress(asyncio.CancelledError, Exception):
            await watching


def _untried(check: Check, why: str) -> Result:
    return Result(name=check.name, mark=Mark.NOT_TRIED, text=why)


async def _one(bench: Bench, check: Check) -> Result:
    try:
        text, mark = await within(check.limit_s, check.run(bench)), Mark.HOLDS
    except NotTried as error:
        text, mark = str(error), Mark.NOT_TRIED
    except CheckFailure as error:
        text, mark = str(error), Mark.BROKEN
    except Late:
        text, mark = f"not over within {check.limit_s:g} s", Mark.BROKEN
    except UsageError:  # a missing tool of the machine is no defect of the adapter
        raise
    except HarnessError as error:
        text, mark = f"it broke off: {error}", Mark.BROKEN
    except FiredrillError as error:
        text, mark = f"{type(error).__name__}: {error}", Mark.BROKEN
    except Exception as error:
        text, mark = f"the adapter raised {type(error).__name__}: {error}", Mark.BROKEN
    # Before the set-up there is nothing that could be made whole.
    if mark is Mark.BROKEN and check in UP:
        text += await _mended(bench)
    return Result(name=check.name, mark=mark, text=text)


async def _mended(bench: Bench) -> str:
    """Make the cluster whole for the checks that follow; returns the failure, empty without one."""
    try:
        await bench.mend()
    except Exception as error:
        return f" (and afterwards: {error})"
    return ""
