"""The appends made under faults and their results, compared with the final contents."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import attrs

from harness.conform.bench import APPEND, CLOSE_LIMIT_S, READ, AttemptResult, Bench, CheckFailure
from harness.history.records import MicroOp, OpType
from harness.protocols.client import Client, StoreError
from harness.tasks import together

SHOWN = 3  # elements that a sentence names


@attrs.define(eq=False)
class Ledger:
    """Appends of unique elements, by key."""

    bench: Bench
    done: dict[int, dict[int, AttemptResult]] = attrs.field(factory=dict)

    def enter(self, key: int, element: int, done: AttemptResult) -> None:
        """Record the result of an append."""
        self.done.setdefault(key, {})[element] = done

    async def audit(self, node: str) -> str:
        """Read every key through ``node``. Raises ``CheckFailure`` where an append with a definite
        error took effect, an acknowledged append is missing, or one took effect twice.
        """
        wrong: list[str] = []
        for key, appended in sorted(self.done.items()):
            read = await self.bench.acknowledged(node, MicroOp(READ, key))
            held = read.values[0] or ()
            if isinstance(held, int):
                raise CheckFailure(f"a list was read back as {held}")
            wrong += _differences(key, Counter(held), appended)
        if wrong:
            more = f" (and {len(wrong) - SHOWN} more)" if len(wrong) > SHOWN else ""
            raise CheckFailure("; ".join(wrong[:SHOWN]) + more)
        return self.told()

    def told(self) -> str:
        """The number of appends of each type, with the error codes."""
        every = [done for appended in self.done.values() for done in appended.values()]
        types = Counter(done.type.value for done in every)
        codes = Counter(f"{done.error} {done.type.value}" for done in every if not done.ok)
        named = ", ".join(f"{code} {count}" for code, count in sorted(codes.items()))
        counts = ", ".join(f"{types[name]} {name}" for name in ("ok", "fail", "info"))
        return counts + (f" ({named})" if named else "")


def _differences(key: int, held: Counter[int], appended: dict[int, AttemptResult]) -> list[str]:
    wrong = [
        f"{element} is {count} times in key {key}, appended once: a hidden retry"
        for element, count in held.items()
        if count > 1
    ]
    for element, done in appended.items():
        if done.type is OpType.FAIL and element in held:
            wrong.append(
                f"the append of {element} ended as {done}, which is definite, and {element} is in "
                f"key {key}"
            )
        if done.ok and element not in held:
            wrong.append(f"the append of {element} was acknowledged, and key {key} lacks it")
    wrong += [f"key {key} holds {e}, which nobody appended" for e in held if e not in appended]
    return wrong


async def load(
    ledger: Ledger, *, seconds: float, clients: int, keys: int, limit_s: float, seed: int = 1
) -> None:
    """Append through all nodes for ``seconds``. A client whose operation was uncertain, or whose
    connection is gone, continues at the next node, as the driver's processes do.
    """
    bench = ledger.bench
    ends_s = asyncio.get_running_loop().time() + seconds
    chosen = [bench.number() for _ in range(keys)]

    async def one(number: int) -> None:
        draw, turn = random.Random(seed * 1000 + number), number
        nodes = bench.cluster.nodes
        client: Client | None = None
        while asyncio.get_running_loop().time() < ends_s:
            node, key, element = nodes[turn % len(nodes)], draw.choice(chosen), bench.number()
            if client is None:
                client = await _dialed(bench, node)
            if client is not None:
                append = MicroOp(APPEND, key, element)
                done = await bench.transact(node, append, client=client, limit_s=limit_s)
                ledger.enter(key, element, done)
                if done.ok:
                    continue
                await bench.close(client)
                client = None
            turn += 1
            # Of different lengths, or clients that met in a conflict would meet again.
            await asyncio.sleep(0.05 + 0.1 * draw.random())
        if client is not None:
            await bench.close(client)

    await together(one(number) for number in range(clients))


async def _dialed(bench: Bench, node: str) -> Client | None:
    async def dial() -> Client | None:
        try:
            return await bench.connect(node)
        except StoreError as error:
            bench.judged("connect", error)
            return None

    return await bench.give_up(dial(), 2 * CLOSE_LIMIT_S)
