"""``firedrill cleanup``: remove the remains of killed controllers."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import click

from cli.reaping.reaper import BY_HAND
from cli.run_state import driven
from cli.session import RunName, Session, runs_option, say
from harness.errors import FiredrillError, MalformedHistory, NotRemoved, UsageError
from harness.exit_codes import Outcome
from harness.history.manifest import read_manifest
from harness.history.run_directory import RunDirectory, directory_mark, require_plain
from harness.plan import planfile
from harness.run.addresses import forget_addresses
from harness.scratch import sweep
from harness.text import inert
from results.store.store import RunStore

PLURAL = {"container": "s", "network": "s", "process": "es"}
# Of other providers only they know what they made; without a plan all is tried.
CLEANED = ("docker", "process", "sim", "auto", None)
NAMED_MAX = 3  # runs that the sentence on what others left names


@click.command()
@click.argument("runs", type=RunName(), nargs=-1)
@click.option(
    "--all", "everything", is_flag=True, help="Also the clusters that were kept up on purpose."
)
@click.option(
    "--force",
    is_flag=True,
    help="Also where the controller of a named run lives, or can't be seen from here.",
)
@runs_option
@click.pass_obj
def cleanup(
    session: Session, runs: tuple[str, ...], everything: bool, force: bool, store: RunStore
) -> int:
    """Remove containers, networks, rules and processes of RUNS, or of all runs that are no longer
    driven. A cluster that was kept up (--keep) goes only by its name, or with --all. Works
    without a Docker daemon.
    """
    if runs and everything:
        raise UsageError("name runs or say --all, not both")
    if force and not runs:
        raise UsageError("--force is for runs that are named: it takes down what may be in use")
    named = [store.resolve(name) for name in runs]
    for directory in named:
        if driven(directory) and not force:
            raise UsageError(f"run {directory.root.name} is still driven: stop it first (Ctrl-C)")
    # By force a directory may also speak for a run that says that it is another's.
    known = [(known_as(run), "" if force else directory_mark(run.root)) for run in named]
    directories, refused = _plain(named or store.runs())
    directories = [run for run in directories if named or not driven(run)]
    for run, provider in [(run, provider_of(run)) for run in named]:
        if provider not in CLEANED:
            say(f"{run.root.name}: only provider {provider!r} knows what it made; {BY_HAND}")
            refused += 1
    work = [partial(_processes, run, bool(named) or everything) for run in directories]
    work += [partial(_containers, *run, kept_too=True, force=force) for run in known] or [
        partial(_containers, kept_too=everything)
    ]
    sweep(store.root)
    removed, failures = _each(work)
    # Containers that nobody could look at may still be up.
    in_docker = [run for run in directories if provider_of(run) == "docker"]
    unseen = in_docker if in_docker and not _daemon_answers() else []
    for run in unseen if named else ():
        say(f"{run.root.name} was made in Docker: what is left of it is not known")
        failures += 1
    # After a failure a cluster may still be up: its mark stays, and says so.
    if not failures:
        for run in directories:
            if run in unseen:
                continue
            if named or everything:
                _unmark(run)
            if not run.kept.exists():
                forget_addresses(run)  # by now other programs may have these ports
    if not removed and not failures:
        click.echo("nothing to remove")
    return Outcome.HARNESS_ERROR.exit_code if failures or refused else 0


def provider_of(run: RunDirectory) -> str | None:
    """Return the provider that the run's plan names; ``None`` where no plan can be read."""
    try:
        cluster = planfile.read_table(run.plan).get("cluster")
    except UsageError:
        return None
    found = cluster.get("provider") if isinstance(cluster, dict) else None
    return found if isinstance(found, str) else None


def _unmark(run: RunDirectory) -> None:
    """Remove the mark of a cluster that was kept up."""
    with contextlib.suppress(OSError):  # on a medium that can only be read nothing is held by it
        run.kept.unlink(missing_ok=True)


def _daemon_answers() -> bool:
    from clusters.providers.docker.daemon import NoDaemon, connect

    try:
        connect()
    except NoDaemon:
        return False
    return True


def _plain(runs: Iterable[RunDirectory]) -> tuple[list[RunDirectory], int]:
    """Return the runs without links that lead elsewhere, and the number of the others, each of
    which is reported.
    """
    kept, refused = [], 0
    for run in runs:
        try:
            require_plain(run)
        except MalformedHistory as error:
            say(f"{run.root.name} is passed over: {error}")
            refused += 1
        else:
            kept.append(run)
    return kept, refused


def known_as(run: RunDirectory) -> str:
    """Return the identifier that the run's traces carry: a directory may have been moved since.

    Where no manifest has it, traces of a run must: a directory without any is no order to clean.
    Raises ``MalformedHistory``.
    """
    try:
        return read_manifest(run).run_id
    except MalformedHistory:
        if run.chunks.is_dir() or run.undo.is_dir():
            return run.root.name
        raise


def _each(work: Iterable[Callable[[], list[str]]]) -> tuple[int, int]:
    """Do all of ``work``, and report the removals; a failure does not stop the rest.

    Returns how many things were removed and how many pieces of work failed.
    """
    removed = failures = 0
    for remove in work:
        try:
            lines = remove()
        except NotRemoved as error:
            _tell_removed(error.removed)
            say(str(error))
            failures += 1
            continue
        except FiredrillError as error:
            say(str(error))
            failures += 1
            continue
        except Exception as error:  # an unforeseen run must not stop the cleaning of the others
            say(f"unexpected {type(error).__name__}: {error}")
            failures += 1
            continue
        _tell_removed(lines)
        removed += len(lines)
    return removed, failures


def _tell_removed(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(f"removed {inert(line)}")


def left_by_others(store: RunStore) -> str:
    """Describe the remains of dead controllers on this machine, with the command that removes them;
    empty where nothing is left, or where it can't be examined: a run does not depend on it.
    """
    dead, expired = _left_containers()
    dead += _left_processes(store)
    told = []
    if dead:
        told.append(f"controllers that died left {_counted(dead)}; firedrill cleanup removes it")
    if expired:
        # Nothing shows whether their controllers live: the daemon may be another user's.
        remove = "docker rm --force, docker network rm"
        told.append(f"{_counted(expired)} outlived its time on another machine ({remove})")
    return "; ".join(told)


def _counted(left: Iterable[tuple[str, str]]) -> str:
    """Format pairs of a kind and a run."""
    pairs = list(left)
    counts = sorted(Counter(kind for kind, _ in pairs).items())
    what = ", ".join(f"{n} {kind}{'' if n == 1 else PLURAL[kind]}" for kind, n in counts)
    runs = list(dict.fromkeys(run for _, run in pairs))
    more = f" and {len(runs) - NAMED_MAX} more" if len(runs) > NAMED_MAX else ""
    return f"{what} of {', '.join(runs[:NAMED_MAX])}{more}"


def _left_processes(store: RunStore) -> Iterator[tuple[str, str]]:
    from clusters.providers.process.cleanup import left

    for run in store.runs():
        with contextlib.suppress(FiredrillError, OSError):
            require_plain(run)
            yield from [("process", run.root.name)] * left(run.undo)


def _left_containers() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    from clusters.providers.docker.cleanup import abandoned

    try:
        dead, expired = abandoned()
    except FiredrillError:  # no daemon, or one that has other worries
        return [], []
    return [(item.kind, item.run_id) for item in dead], [(i.kind, i.run_id) for i in expired]


def _processes(run: RunDirectory, kept_too: bool) -> list[str]:
    from clusters.providers.process.cleanup import cleanup as remove
    from clusters.providers.process.cleanup import kept

    if provider_of(run) not in CLEANED:  # a plug-in may keep there what it likes
        return []
    if not kept_too and kept(run.undo):
        _tell_kept(run.root.name)
        return []
    return [f"{line} ({run.root.name})" for line in remove(run.undo)]


def _containers(
    run_id: str | None = None, directory: str = "", *, kept_too: bool, force: bool = False
) -> list[str]:
    """Return the containers and networks of ``run_id``, whose directory has the mark ``directory``,
    or of every dead controller. A daemon that does not answer is reported and is no failure: most
    machines never had one.
    """
    from clusters.providers.docker.cleanup import cleanup as remove
    from clusters.providers.docker.cleanup import kept_runs
    from clusters.providers.docker.daemon import NoDaemon

    try:
        if run_id is None and not kept_too:
            for kept in kept_runs():
                _tell_kept(kept)
        return list(remove(run_id, kept=kept_too, directory=directory, force=force))
    except NoDaemon as error:
        say(f"containers were not looked at: {error}")
        return []


def _tell_kept(run_id: str) -> None:
    say(f"{run_id} was kept up on purpose: name it, or say --all, to take it down")
