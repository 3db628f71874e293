"""Running things side by side, and waiting for one answer, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from clusters.providers.sim.loop import simulate
from clusters.reference.node.runtime.concurrency import Failure, Tasks, all_of, within


class Wrong(Exception):
    """What a part raises here."""


def test_all_parts_answer_in_their_order_whoever_is_first() -> None:
    async def part(number: int) -> int:
        await asyncio.sleep(10 - number)
        return number

    async def scenario() -> tuple[list[int], list[int], list[int]]:
        return (
            await all_of(part(n) for n in range(4)),
            await all_of([part(7)]),
            await all_of(part(n) for n in range(0)),
        )

    assert simulate(scenario()) == ([0, 1, 2, 3], [7], [])


@pytest.mark.parametrize("first", [True, False])
def test_where_one_part_raises_the_others_are_ended_before_it_is_told(first: bool) -> None:
    ended = list[str]()

    async def long() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append("long")

    async def wrong() -> None:
        await asyncio.sleep(1)
        raise Wrong

    async def scenario() -> None:
        with pytest.raises(Wrong):
            await all_of([wrong(), long()] if first else [long(), wrong()])
        assert ended == ["long"]

    simulate(scenario())


@pytest.mark.parametrize(("last", "found", "took_s"), [(9, [0, 1], 1.0), (1, [0, 1, 2], 2.0)])
def test_once_an_answer_is_enough_the_others_are_ended(
    last: int, found: list[int], took_s: float
) -> None:
    ended = list[int]()

    async def part(number: int, after_s: float) -> int:
        try:
            await asyncio.sleep(after_s)
        finally:
            ended.append(number)
        return number

    async def scenario() -> tuple[list[int], float]:
        begun_s = asyncio.get_running_loop().time()
        parts = [part(0, 0.5), part(1, 1.0), part(2, 2.0)]
        answers = await all_of(parts, enough=lambda number: number * last > 4)
        assert sorted(ended) == [0, 1, 2]
        return answers, asyncio.get_running_loop().time() - begun_s

    answers, after_s = simulate(scenario())
    assert answers == found
    assert after_s == pytest.approx(took_s)


@pytest.mark.parametrize(("answered_s", "expected"), [(1.0, "answer"), (3.0, "late")])
def test_an_answer_counts_if_it_comes_in_time(answered_s: float, expected: str) -> None:
    async def scenario() -> tuple[str, float]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[str] = loop.create_future()

        def come() -> None:
            if not answer.done():
                answer.set_result("answer")

        loop.call_later(answered_s, come)
        begun_s = loop.time()
        return await within(2.0, answer, "late"), loop.time() - begun_s

    found, took_s = simulate(scenario())
    assert (found, took_s) == (expected, pytest.approx(min(answered_s, 2.0)))


def test_an_error_of_a_task_is_the_failure_and_the_first_one_counts() -> None:
    async def scenario() -> str:
        failure = Failure()
        tasks = Tasks(failure)

        async def fail(text: str) -> None:
            raise KeyError(text)

        tasks.spawn(fail("first"))
        tasks.spawn(fail("second"))
        with pytest.raises(KeyError) as raised:
            await failure.future
        await asyncio.sleep(0)
        assert len(tasks) == 0
        return str(raised.value)

    assert asyncio.run(scenario()) == "'first'"


def test_a_part_counts_among_all_tasks_and_is_cancelled_without_the_others() -> None:
    async def scenario() -> None:
        failure = Failure()
        tasks, forever = Tasks(failure), asyncio.Event()

        async def wait() -> None:
            await forever.wait()

        other, part = tasks.spawn(wait()), tasks.part()
        part.spawn(wait())
        part.spawn(wait())
        assert len(tasks) == 3

        cancelled = part.cancel()
        await asyncio.gather(*cancelled, return_exceptions=True)
        assert (len(cancelled), len(tasks), part.cancel()) == (2, 1, ())
        assert (other.done(), failure.reported) == (False, False)
        tasks.cancel()

    asyncio.run(scenario())
