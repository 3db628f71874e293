"""What a primary says of itself: the prepared are protected as the log says, and only what is open
holds locks.
"""

from __future__ import annotations

import pytest
from primary_scene import EPOCH, KEY, OLD, YOUNG, Scene, lock, prepare, token_of

from clusters.providers.sim.loop import simulate
from clusters.reference.node import declarations
from clusters.reference.node.declarations import Inspection
from clusters.reference.node.tx.locks import LockTable
from clusters.reference.node.wire.messages import Finish, PrepareReply

OTHER = b"other"


async def prepared() -> Scene:
    """A transaction has read a key and is prepared with the write of another."""
    scene = Scene()
    token = await token_of(scene, OLD, OTHER)
    done = await scene.primary.serve(prepare(OLD, token, settled=True))
    assert isinstance(done, PrepareReply)
    return scene


def test_what_is_prepared_is_protected_from_the_takeover_to_its_end() -> None:
    async def scenario() -> list[object]:
        scene, told = await prepared(), list[object]()
        said = [scene.primary.broken()]
        declarations.listen(told.append)
        scene.leases.epoch = EPOCH + 1
        assert await scene.primary.take_over(EPOCH + 1)
        said.append(scene.primary.broken())
        await scene.primary.serve(Finish(0, OLD, 0))
        said.append(scene.primary.broken())
        return [*said, *(each for each in told if isinstance(each, Inspection))]

    assert simulate(scenario()) == [None, None, None, Inspection("partition 0", None)]


@pytest.mark.parametrize(
    ("held", "lost"),
    [
        ({KEY: True, OTHER: False}, None),
        ({KEY: True, OTHER: True}, None),  # more than is asked for
        ({KEY: True}, OTHER),
        ({OTHER: False}, KEY),
        ({KEY: False, OTHER: False}, KEY),  # to share is too little for a write
    ],
)
def test_a_lock_that_the_log_asks_for_and_is_not_held_is_named(
    held: dict[bytes, bool], lost: bytes | None
) -> None:
    async def scenario() -> str | None:
        scene = await prepared()
        scene.primary.transactions.locks = LockTable()
        for key, exclusive in held.items():
            scene.primary.locks.restore(OLD, key, exclusive=exclusive)
        return scene.primary.broken()

    missing = f"key {lost!r}: {OLD} is prepared with it, and has no lock of it"
    assert simulate(scenario()) == (None if lost is None else missing)


def test_a_lock_of_what_is_over_is_named() -> None:
    async def scenario() -> str | None:
        scene = Scene()
        await scene.primary.serve(lock(YOUNG, exclusive=True))
        assert scene.primary.broken() is None
        scene.primary.transactions.remove(YOUNG)
        return scene.primary.broken()

    assert simulate(scenario()) == f"key {KEY!r}: locked by {YOUNG}, which is over"
