"""Disks that are slow, full, failing, damaged or empty."""

from __future__ import annotations

import attrs

from harness.clock import MS_PER_S
from harness.protocols.fault_kinds import BIT_FLIP, DISK_ERROR, DISK_FULL, DISK_SLOW, WIPE
from harness.protocols.faults import Proof
from harness.protocols.hardware import DiskTrouble
from nemesis.hardware_faults import HardwareFault, Hit
from nemesis.node_faults import start_stopped


def disk_slow() -> HardwareFault:
    """Every call of the disk takes longer: ``n1 at 100 ms``."""
    return HardwareFault(kind=DISK_SLOW, verbs=Slow())


def disk_full() -> HardwareFault:
    """No space is left (ENOSPC), until the heal makes room and restarts the programs that stopped
    for it.
    """
    return HardwareFault(kind=DISK_FULL, verbs=DiskRefusal(DiskTrouble(full=True)))


def disk_error() -> HardwareFault:
    """Reads, writes and syncs fail (EIO), until the heal; it restarts the programs that stopped for
    it.
    """
    return HardwareFault(kind=DISK_ERROR, verbs=DiskRefusal(DiskTrouble(failing=True)))


def bit_flip() -> HardwareFault:
    """kill -9, a bit of old data flips, and a start; the heal replaces the disk by an empty one."""
    return HardwareFault(kind=BIT_FLIP, verbs=BitFlip())


def wipe() -> HardwareFault:
    """kill -9 and an empty disk; the heal starts the program on it."""
    return HardwareFault(kind=WIPE, verbs=Wipe())


class Slow:
    """``nemesis.hardware_faults.Verbs``."""

    async def inject(self, hit: Hit) -> None:
        """Slow every call down."""
        await hit.hardware.set_disk(hit.node, DiskTrouble(slow_s=hit.strength / MS_PER_S))

    async def effective(self, hit: Hit) -> Proof:
        """A write takes as long."""
        return await self._look(hit, slow=True)

    async def heal(self, hit: Hit) -> None:
        """As before."""
        await hit.hardware.set_disk(hit.node, DiskTrouble())

    async def healed(self, hit: Hit) -> Proof:
        """A write takes less."""
        return await self._look(hit, slow=False)

    async def _look(self, hit: Hit, *, slow: bool) -> Proof:
        look = await hit.hardware.try_disk(hit.node)
        text = f"a write on {hit.node} took {look.took_s * MS_PER_S:.1f} ms"
        return Proof(holds=(look.took_s * MS_PER_S >= hit.strength) is slow, text=text)


@attrs.frozen
class DiskRefusal:
    """``nemesis.hardware_faults.Verbs`` for a disk that refuses, as ``trouble`` says."""

    trouble: DiskTrouble

    async def inject(self, hit: Hit) -> None:
        """Let it refuse."""
        await hit.hardware.set_disk(hit.node, self.trouble)

    async def effective(self, hit: Hit) -> Proof:
        """A write is refused."""
        look = await hit.hardware.try_disk(hit.node)
        return Proof(
            holds=bool(look.error), text=f"on {hit.node}: {look.error or 'a write passes'}"
        )

    async def heal(self, hit: Hit) -> None:
        """Let it work, and restart the program if it stopped for it."""
        await hit.hardware.set_disk(hit.node, DiskTrouble())
        await start_stopped(hit.scene.provider, hit.node)

    async def healed(self, hit: Hit) -> Proof:
        """A write passes."""
        look = await hit.hardware.try_disk(hit.node)
        return Proof(holds=not look.error, text=f"on {hit.node}: {look.error or 'a write passes'}")


class BitFlip:
    """``nemesis.hardware_faults.Verbs``."""

    async def inject(self, hit: Hit) -> None:
        """Kill, flip, start."""
        # Between a kill and a start: a running node may never read its old data again.
        await hit.scene.provider.kill(hit.node)
        await hit.hardware.flip(hit.node, hit.draw)
        await hit.scene.provider.start(hit.node)

    async def effective(self, hit: Hit) -> Proof:
        """A bit differs from the written one; the text tells whether the program runs on."""
        look = await hit.hardware.try_disk(hit.node)
        status = await hit.scene.provider.probe(hit.node)
        runs = "runs" if status.running else f"does not run ({status.end})"
        text = f"{look.flipped_bits} bits on {hit.node} are not what was written; it {runs}"
        return Proof(holds=look.flipped_bits > 0, text=text)

    async def heal(self, hit: Hit) -> None:
        """Replace the disk while it is damaged, and start."""
        # Asked first: a second try must not wipe the disk that the first one replaced.
        if (await hit.hardware.try_disk(hit.node)).flipped_bits:
            await hit.scene.provider.kill(hit.node)
            await hit.hardware.wipe(hit.node)
        await start_stopped(hit.scene.provider, hit.node)

    async def healed(self, hit: Hit) -> Proof:
        """No bit is wrong."""
        look = await hit.hardware.try_disk(hit.node)
        text = f"{look.flipped_bits} bits on {hit.node} are not what was written"
        return Proof(holds=look.flipped_bits == 0, text=text)


class Wipe:
    """``nemesis.hardware_faults.Verbs``."""

    async def inject(self, hit: Hit) -> None:
        """Kill and wipe."""
        await hit.scene.provider.kill(hit.node)
        await hit.storage.wipe(hit.node)

    async def effective(self, hit: Hit) -> Proof:
        """Nothing is on the disk, and nothing runs."""
        size_bytes = await hit.storage.data_bytes(hit.node)
        status = await hit.scene.provider.probe(hit.node)
        runs = "runs" if status.running else "does not run"
        text = f"{size_bytes} bytes are on the disk of {hit.node}, which {runs}"
        return Proof(holds=size_bytes == 0 and not status.running, text=text)

    async def heal(self, hit: Hit) -> None:
        """Start on the empty disk."""
        await start_stopped(hit.scene.provider, hit.node)

    async def healed(self, hit: Hit) -> Proof:
        """Something is on the disk again."""
        size_bytes = await hit.storage.data_bytes(hit.node)
        return Proof(holds=size_bytes > 0, text=f"{size_bytes} bytes are on the disk of {hit.node}")
