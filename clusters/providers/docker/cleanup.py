"""Removing the leftovers of runs: found by label, and only of controllers that are surely dead.

A daemon goes on with what a dead controller had asked for. So each request to make something is
announced in the run's directory for as long as it is under way (``Requests``), and what removes the
leftovers knows whether more may come.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import docker
from docker.errors import APIError

from clusters.providers.docker import labels
from clusters.providers.docker.daemon import DaemonError, connect, doing
from harness.errors import HarnessError, NotRemoved, UsageError
from harness.history.durable_files import disk_failure
from harness.history.run_directory import same_directory

LOOK_LIMIT_S = 10  # of a run that only wants to tell what others left
PASSES_MAX = 5  # the daemon may still be making what a killed controller asked for
REMOVALS_AT_ONCE = 8  # of containers: the daemon takes its time for each, most of it waiting
ANNOUNCED = "making-"


@attrs.frozen(kw_only=True)
class Leftover:
    """A labelled container or network: its kind, its name, its run and the controller's labels.

    ``directory`` is the mark of the run's directory, empty where the labels don't tell it;
    ``marks_kept``: its labels say that the run was left up on purpose; ``expired``: that its time
    is over.
    """

    kind: str
    name: str
    run_id: str
    owner: labels.Owner | None
    directory: str = ""
    marks_kept: bool = False
    expired: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {self.name} of run {self.run_id}"


class Requests:
    """The objects that the daemon is being asked to make for a run: of each an empty file in
    ``directory`` (its ``undo`` directory) as long as the request is under way. ``None``: of a run
    without one; nothing is announced then.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    @contextlib.contextmanager
    def announced(self, name: str) -> Iterator[None]:
        """Announce that object ``name`` is being made, until the daemon has answered: after a
        timeout it may still appear. Raises ``HarnessError`` where the disk refuses.
        """
        if self._directory is None:
            yield
            return
        path = self._directory / f"{ANNOUNCED}{name}"
        try:
            path.touch()
        except OSError as error:
            raise disk_failure("announce", path, error, f"{name} is not made") from error
        try:
            yield
        except HarnessError as error:
            if not isinstance(error, DaemonError) or error.answered:
                self.settle(name)
            raise
        self.settle(name)

    def open(self) -> tuple[str, ...]:
        """The names of those that have not been answered, nor settled."""
        try:
            names = [path.name for path in self._directory.iterdir()] if self._directory else []
        except OSError:  # the directory is gone, and its announcements with it
            names = []
        return tuple(
            sorted(name.removeprefix(ANNOUNCED) for name in names if name.startswith(ANNOUNCED))
        )

    def settle(self, name: str) -> None:
        """Object ``name`` was made, or never will be."""
        if self._directory is not None:
            with contextlib.suppress(OSError):
                (self._directory / f"{ANNOUNCED}{name}").unlink()


class StillOwned(UsageError):
    """A run was to be cleaned up whose controller may live."""

    def __init__(self, item: Leftover) -> None:
        whose = str(item.owner) if item.owner else "an owner that its labels do not tell"
        super().__init__(
            f"run {item.run_id}: {item.kind} {item.name} belongs to {whose}, which lives or can't "
            "be seen from here; stop it first, or say --force if you know that it is gone"
        )


class OtherDirectory(UsageError):
    """A run was to be cleaned up in the name of a directory that is not its own."""

    def __init__(self, item: Leftover, directory: str) -> None:
        true, given = (mark.split(":", 2)[-1] for mark in (item.directory, directory))
        super().__init__(
            f"run {item.run_id}: {item.kind} {item.name} belongs to the run in {true}, not to the "
            f"directory {given}; name that one, or say --force"
        )


def cleanup(
    run_id: str | None = None,
    *,
    kept: bool = False,
    directory: str = "",
    force: bool = False,
    requests: Requests | None = None,
) -> list[str]:
    """Remove the containers and networks of run ``run_id``, or of every run whose controller is
    dead, with ``kept`` also of those left up on purpose; return what was removed, a text each.
    Blocking.

    Never touches an object without our labels, and none of another directory than the one with the
    mark ``directory``, where that is given: run directories are copied, manifests written by
    anybody, and two users of a daemon may have runs of one name. Unless ``run_id`` comes with
    ``force``, none whose controller lives or can't be seen from here.
    Idempotent. Each object has the deadline of the daemon's calls, and one that can't be removed
    keeps no other from going; of those in ``requests`` what is gone is settled. Raises
    ``StillOwned`` and ``OtherDirectory`` before anything is removed, ``NotRemoved`` after the rest
    is gone, ``NoDaemon`` and ``DaemonError``.
    """
    client = connect()
    here = labels.myself()
    removed: list[str] = []
    failed: dict[str, str] = {}
    for _ in range(PASSES_MAX):
        found = leftovers(client)
        # A run that is named is meant, whether it was kept or not.
        spared = frozenset[str]() if kept or run_id is not None else _kept(found)
        if run_id is not None and not force:
            _refuse_others([one for one in found if one.run_id == run_id], directory, here)
        chosen = [
            item
            for item in found
            if item.run_id not in spared
            and str(item) not in failed  # it has had its deadline
            and _is_ours(item, run_id, here)
            and not _of_another(item, directory)
        ]
        if not chosen:
            break
        failed |= _remove(client, chosen)
        gone = [item for item in chosen if str(item) not in failed]
        removed += [str(item) for item in gone if str(item) not in removed]
        for item in gone:
            (requests or Requests(None)).settle(item.name)
    if failed:
        raise NotRemoved(removed, failed)
    return removed


def _remove(client: docker.APIClient, chosen: Iterable[Leftover]) -> dict[str, str]:
    """Remove each of ``chosen``; why not, for those where that failed."""
    by_kind: dict[str, list[Leftover]] = {"container": [], "network": []}
    for item in chosen:
        by_kind[item.kind].append(item)
    failed: dict[str, str] = {}

    def attempt(item: Leftover) -> None:
        remove = remove_container if item.kind == "container" else remove_network
        try:
            remove(client, item.name)
        except DaemonError as error:
            failed[str(item)] = error.reason

    with ThreadPoolExecutor(REMOVALS_AT_ONCE, thread_name_prefix="removal") as pool:
        for each in by_kind.values():  # containers first: a network in use can't be removed
            # Drained: all of one kind are gone before the next kind begins.
            list(pool.map(attempt, each))
    return failed


def abandoned() -> tuple[list[Leftover], list[Leftover]]:
    """The leftovers of controllers that are surely dead, and expired ones of others; runs that were
    kept up on purpose are in neither. Blocking; raises as ``cleanup``.
    """
    here, found = labels.myself(), leftovers(connect(LOOK_LIMIT_S))
    spared = _kept(found)
    stray = [item for item in found if item.run_id not in spared]
    dead = [item for item in stray if _is_ours(item, None, here)]
    return dead, [item for item in stray if item.expired and item not in dead]


def kept_runs() -> tuple[str, ...]:
    """Identifiers of the runs that were left up on purpose. Blocking; raises as ``cleanup``."""
    return tuple(sorted(_kept(leftovers(connect()))))


def _kept(found: Iterable[Leftover]) -> frozenset[str]:
    return frozenset(item.run_id for item in found if item.marks_kept)


def _refuse_others(found: Iterable[Leftover], directory: str, here: labels.Owner) -> None:
    for item in found:
        if _of_another(item, directory):
            raise OtherDirectory(item, directory)
        if not (item.owner and item.owner.is_dead(here)):
            raise StillOwned(item)


def _of_another(item: Leftover, directory: str) -> bool:
    """Whether ``item`` says that it is of another directory than the one with that mark."""
    if not (directory and item.directory):
        return False
    return not same_directory(directory, item.directory)


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
    now = datetime.now(UTC)
    return [
        Leftover(
            kind=kind,
            name=name,
            run_id=marks[labels.RUN],
            owner=labels.owner_of(marks),
            directory=marks.get(labels.DIRECTORY, ""),
            marks_kept=labels.KEPT in marks,
            expired=labels.expired(marks, now),
        )
        for name, marks in sorted(named, key=lambda item: item[0])
    ]


LEAVING_LIMIT_S = 4.0  # a container made at the moment of teardown is removed by its maker


def remove_container(client: docker.APIClient, name: str) -> bool:
    """Kill and remove a container and its anonymous volumes; whether it was there. No error if it
    is gone or going.

    A frozen one is thawed first: under control groups version 1 a frozen process can't die, and a
    daemon that loses hold of the container meanwhile can never remove it.
    """
    with doing(f"removing container {name}", missing_is_fine=True):
        if client.inspect_container(name)["State"]["Paused"]:
            with contextlib.suppress(APIError):  # it was thawed meanwhile, or went
                client.unpause(name)
        try:
            client.remove_container(name, v=True, force=True)
        except APIError as error:
            # The daemon is removing it for another caller, which is what was wanted.
            if "already in progress" not in (error.explanation or ""):
                raise
        return True
    return False


def remove_network(client: docker.APIClient, name: str) -> bool:
    """Remove a network; whether it was there. Waits a little for the last container to leave it."""
    ends = time.monotonic() + LEAVING_LIMIT_S
    with doing(f"removing network {name}", missing_is_fine=True):
        while True:
            try:
                client.remove_network(name)
            except APIError as error:
                busy = "active endpoints" in (error.explanation or "")
                if not busy or time.monotonic() > ends:
                    raise
            else:
                return True
            time.sleep(0.1)
    return False
