"""Keeps a majority of every group: nodes that are about to lose their data, or to leave, wait until
the others are a majority without them, up and whole.
"""

from __future__ import annotations

import asyncio

from harness.errors import HarnessError
from harness.protocols.cluster import TellsMetastorage
from harness.protocols.faults import Scene, Victims
from harness.protocols.hardware import Replicas
from harness.tasks import together

SPARED_LIMIT_S = 10.0  # a node that was killed needs a few seconds to be whole again
POLL_S = 0.2
CATCH_UP_S = 1.0  # followers are always a little behind: that long they may take for what is there


async def spare_majorities(scene: Scene, victims: Victims) -> None:
    """Wait until a majority of every group is left without the victims, up and whole. Raises
    ``HarnessError``.
    """
    reason = ""
    try:
        async with asyncio.timeout(SPARED_LIMIT_S + scene.patience_s):
            while True:
                reason = await endangered(scene, victims)
                if not reason:
                    return
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise HarnessError(f"it would take a majority: {reason}") from None


async def endangered(scene: Scene, victims: Victims) -> str:
    """Return why the victims must keep their data; empty where they need not."""
    looks = await together(scene.provider.probe(node) for node in scene.cluster.nodes)
    up = [look.node for look in looks if look.running and not (look.paused or look.frozen)]
    # Up again is not whole again: a wiped node votes only once it has caught up.
    taken = (*scene.damaged(), *victims.nodes)
    roles = await scene.system.roles(scene.cluster)
    if not roles.voters:
        return "nobody tells who votes"
    keeps_metastorage = isinstance(scene.system, TellsMetastorage) and scene.system.metastorage
    if keeps_metastorage and not roles.metastorage_voters:  # it has no leader now
        return "nobody tells who votes in metastorage"
    groups = [(f"partition {number}", voters) for number, voters in sorted(roles.voters.items())]
    for group, voters in (("metastorage", roles.metastorage_voters), *groups):
        left = [node for node in voters if node in up and node not in taken]
        touched = any(node in victims.nodes for node in voters)
        if touched and len(left) <= len(voters) // 2:
            return f"of {group} only {', '.join(left) or 'nobody'} would be left"
    # Replicas that lag behind hold no copy of what the victims would lose.
    return "; ".join(await lacking_replicas(scene))


async def lacking_replicas(scene: Scene) -> list[str]:
    """Return why the cluster is not whole, where the system reports that."""
    if isinstance(scene.system, Replicas):
        return await scene.system.lacking(scene.cluster, CATCH_UP_S)
    return []
