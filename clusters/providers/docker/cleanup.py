"""Removing what runs left behind: found by label, and only of controllers that are surely dead."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs
import docker

from clusters.providers.docker import labels
from clusters.providers.docker.daemon import connect, doing
from clusters.providers.docker.removal import remove_container, remove_network

PASSES_MAX = 5  # the daemon may still be making what a killed controller asked for


@attrs.frozen(kw_only=True)
class Leftover:
    """A labelled container or network: its kind, its name, its run and the controller's labels.

    ``marks_kept``: it says that its run was left up on purpose.
    """

    kind: str
    name: str
    run_id: str
    owner: labels.Owner | None
    marks_kept: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {self.name} of run {self.run_id}"


def cleanup(run_id: str | None = None, *, kept: bool = False) -> list[str]:
    """Remove the containers and networks of run ``run_id``, or of every run whose controller is
    dead, with ``kept`` also of those left up on purpose; return what was removed, a text each.
    Blocking.

    Never touches an object without our labels; without ``run_id`` none whose controller lives or
    can't be seen from here. Idempotent. Raises ``NoDaemon`` and ``DaemonError``.
    """
    client = connect()
    here = labels.myself()
    removed: list[str] = []
    for _ in range(PASSES_MAX):
        found = leftovers(client)
        spared = frozenset[str]() if kept or run_id is not None else _kept(found)
        chosen = [
            item for item in found if item.run_id not in spared and _is_ours(item, run_id, here)
        ]
        if not chosen:
            break
        for item in chosen:  # containers come first: a network in use can't be removed
            remove = remove_container if item.kind == "container" else remove_network
            remove(client, item.name)
        removed += [str(item) for item in chosen if str(item) not in removed]
    return removed


def kept_runs() -> tuple[str, ...]:
    """Identifiers of the runs that were left up on purpose. Blocking; raises as ``cleanup``."""
    return tuple(sorted(_kept(leftovers(connect()))))


def _kept(found: Iterable[Leftover]) -> frozenset[str]:
    return frozenset(item.run_id for item in found if item.marks_kept)


def _is_ours(item: Leftover, run_id: str | None, here: labels.Owner) -> bool:
    if run_id is not None:
        return item.run_id == run_id
    return item.owner is not None and item.owner.is_dead(here)


def leftovers(client: docker.APIClient) -> list[Leftover]:
    """All labelled containers, then all labelled networks, each in the order of their names."""
    chosen = {"label": labels.RUN}
    with doing("listing what carries firedrill's label"):
        containers = client.containers(all=True, filters=chosen)
        networks = client.networks(filters=chosen)
    return [
        *_sorted("container", ((c["Names"][0].lstrip("/"), c["Labels"]) for c in containers)),
        *_sorted("network", ((n["Name"], n["Labels"]) for n in networks)),
    ]


def _sorted(kind: str, named: Iterable[tuple[str, dict[str, Any]]]) -> list[Leftover]:
    return [
        Leftover(
            kind=kind,
            name=name,
            run_id=marks[labels.RUN],
            owner=labels.owner_of(marks),
            marks_kept=labels.KEPT in marks,
        )
        for name, marks in sorted(named, key=lambda item: item[0])
    ]
