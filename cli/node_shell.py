"""``firedrill shell`` and ``firedrill logs``: the user's access to the nodes of a run."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from cli.cleanup import known_as
from cli.session import NodeName, RunName, runs_option, say
from harness.errors import PlanError, UsageError
from harness.history.regular_files import open_or_refuse
from harness.history.run_directory import RunDirectory, directory_mark
from harness.text import inert, uncommanded_bytes
from results.store.store import RunStore

BLOCK_BYTES = 1 << 16
COMMAND_BYTES = 16  # what a command to a CI begins with is shorter
FOLLOW_POLL_S = 0.2  # what a person doesn't notice
CONTAINER_LOG = "container.log"  # of the machine, not of what runs on it
DOCKER, PROCESS = "docker", "process"


# Options behind the names belong to the command that runs on the node.
@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("run", type=RunName())
@click.argument("node", type=NodeName())
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@runs_option
def shell(run: str, node: str, command: tuple[str, ...], store: RunStore) -> int:
    """Open a shell on NODE of RUN, or run COMMAND there: while the run goes on, or after it was
    kept up. Leaves with the exit code of what ran.
    """
    directory = store.resolve(run)
    provider = _provider(directory)
    _require_node(directory, node)
    if provider == DOCKER:
        from clusters.providers.docker import container_shell as containers

        return containers.shell(known_as(directory), node, command, directory_mark(directory.root))
    if provider == PROCESS:
        from clusters.providers.process import process_shell as processes

        return processes.shell(directory.undo, node, command)
    raise UsageError(f"run {directory.root.name}: the nodes of {provider!r} can't be entered")


@click.command()
@click.argument("run", type=RunName())
@click.argument("node", type=NodeName())
@click.option("--follow", "-f", is_flag=True, help="Go on with what is logged from now on.")
@runs_option
def logs(run: str, node: str, follow: bool, store: RunStore) -> int:
    """Print what NODE of RUN logged: from the node while it is up, else what was collected.

    On a terminal, what could steer it is shown as an escape; elsewhere bytes are as they were, but
    for what a CI that reads them would take for a command (::error).
    """
    directory = store.resolve(run)
    _require_node(directory, node)
    show = _on_terminal if sys.stdout.isatty() else _elsewhere
    for line in _lines(_blocks(directory, node, follow)):
        show(line)
    return 0


def _blocks(run: RunDirectory, node: str, follow: bool) -> Iterator[bytes]:
    if _provider(run) == DOCKER and (blocks := _from_container(run, node, follow)) is not None:
        return blocks
    paths = log_files(run, node)
    if not paths:
        raise UsageError(f"run {run.root.name}: nothing was logged or collected of node {node!r}")
    return _read(paths, (lambda: _up(run, node)) if follow else None)


def _from_container(run: RunDirectory, node: str, follow: bool) -> Iterator[bytes] | None:
    """Return the container's output; ``None`` where it is gone, or no daemon answers."""
    from clusters.providers.docker import container_shell
    from clusters.providers.docker.daemon import NoDaemon

    run_id, ours = known_as(run), directory_mark(run.root)
    try:
        if not container_shell.running(run_id, node, ours):
            return None
        return container_shell.log(run_id, node, ours, follow=follow)
    except NoDaemon as error:
        say(f"the node's container was not looked at: {error}")
        return None


def _up(run: RunDirectory, node: str) -> bool:
    """Tell whether a process of a local node still writes."""
    if _provider(run) != PROCESS:
        return False
    from clusters.providers.process.cleanup import driven
    from clusters.providers.process.process_shell import running

    return driven(run.undo) or running(run.undo, node) is not None


def log_files(run: RunDirectory, node: str) -> tuple[Path, ...]:
    """Return the program's logs in the run directory, or the machine's where there
    are no others.
    """
    found = sorted(run.node(node).glob("*.log"))
    programs = tuple(path for path in found if path.name != CONTAINER_LOG)
    return programs or tuple(found)


def _read(paths: tuple[Path, ...], going_on: Callable[[], bool] | None) -> Iterator[bytes]:
    """Yield the content of ``paths``, one after another, then of the last as it grows for as long
    as ``going_on`` says.
    """
    for path in paths:
        with open_or_refuse(path) as log:
            while block := log.read(BLOCK_BYTES):
                yield block
            while going_on is not None and path == paths[-1]:
                # Asked before the read: else what is written between the two would be missed.
                last_look = not going_on()
                while block := log.read(BLOCK_BYTES):
                    yield block
                if last_look:
                    return
                time.sleep(FOLLOW_POLL_S)


def _lines(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the lines of ``blocks`` with their ends; of a line that is longer than a block, pieces,
    cut where no command to a CI is cut in two.
    """
    rest = b""
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        yield from (line + b"\n" for line in lines)
        if len(rest) > BLOCK_BYTES:
            yield rest[:-COMMAND_BYTES]
            rest = rest[-COMMAND_BYTES:]
    if rest:
        yield rest


def _elsewhere(line: bytes) -> None:
    sys.stdout.buffer.write(uncommanded_bytes(line))
    # Line by line, so that a reader in a pipe can follow what is logged.
    if line.endswith(b"\n"):
        sys.stdout.flush()


def _on_terminal(line: bytes) -> None:
    click.echo(inert(line.decode("utf-8", "replace").removesuffix("\n"), 2 * BLOCK_BYTES))


def _provider(run: RunDirectory) -> str:
    from harness.plan import plan

    try:
        return plan.load(run.plan).cluster.provider
    except PlanError as error:
        raise UsageError(
            f"run {run.root.name}: its plan does not tell where nodes are: {error}"
        ) from error


def _require_node(run: RunDirectory, node: str) -> None:
    from harness.plan import plan

    names = plan.machine_names(plan.load(run.plan))
    if node not in names:
        raise UsageError(f"run {run.root.name}: no node {node!r} (there are {', '.join(names)})")
