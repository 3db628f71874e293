"""The report of a run: one HTML file without dependencies, whole without a script.

Its content security policy forbids everything but its one style sheet and its one script (each by
hash) and pictures that are inside it, and every text passes ``harness.text.inert`` and is escaped,
so that a node's output is shown and never executed. The script adds convenience alone: it reads
figures of ours, and copies, hides or shows what the page holds.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from harness.errors import FiredrillError, MalformedHistory
from harness.history.durable_files import write_atomically
from harness.history.run_directory import RunDirectory
from results.report.html import rendered
from results.report.page import Page, page
from results.report.run_data import gather

LIMIT_BYTES = 2_000_000  # a page that opens at once, and that goes into a mail
LEAN_FAULTS, LEAN_EXAMPLES, LEAN_LINES = 60, 1, 20


def write_report(run: RunDirectory) -> Path:
    """Write ``run.report`` from the run directory, in one step, and return its path.

    Raises ``MalformedHistory`` where the run holds no sealed or recovered history, or no page can
    be made of its content.
    """
    with _collector_paused():
        run_data = gather(run)
        try:
            encoded = _encoded(page(run_data))
        # Ours name the file and the reason already.
        except FiredrillError:
            raise
        except Exception as error:  # a verdict and tables that no run of ours wrote hold anything
            anew = "where its verdict is not ours, 'firedrill check' makes one"
            reason = f"no page can be made of it: {type(error).__name__}: {error} ({anew})"
            raise MalformedHistory(str(run.root), "", reason) from error
    write_atomically(run.report, encoded)
    return run.report


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Within the block no garbage is searched for: a verdict of megabytes holds millions of lists
    and no garbage, and looking at all of them again and again takes longer than drawing it.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def _encoded(content: Page) -> bytes:
    """Encode the page, reduced as far as its size requires."""
    for leaner in (_whole, _fewer_rows, _fewer_drawings, _no_picture, _no_lists):
        content = leaner(content)
        # Names of files may hold lone surrogates, which UTF-8 can't encode.
        encoded = render(content).encode("utf-8", "backslashreplace")
        if len(encoded) <= LIMIT_BYTES:
            break
    return encoded


def _whole(content: Page) -> Page:
    return content


def _fewer_rows(content: Page) -> Page:
    more = content.faults_more + max(0, len(content.faults) - LEAN_FAULTS)
    return attrs.evolve(content, faults=content.faults[:LEAN_FAULTS], faults_more=more)


def _fewer_drawings(content: Page) -> Page:
    lean = (attrs.evolve(c, examples=c.examples[:LEAN_EXAMPLES]) for c in content.cards)
    return attrs.evolve(content, cards=tuple(lean))


def _no_picture(content: Page) -> Page:
    told = "The plot is left out: it would make this page larger than a page should be."
    return attrs.evolve(content, picture=None, picture_notes=(told,), plot_data=None)


def _no_lists(content: Page) -> Page:
    """Leave out the lists that are also in files beside the page."""
    return attrs.evolve(
        content,
        plan_lines=content.plan_lines[:LEAN_LINES],
        plan_more=content.plan_more + len(content.plan_lines[LEAN_LINES:]),
        events=content.events[:LEAN_LINES],
        events_more=content.events_more + len(content.events[LEAN_LINES:]),
        logs=content.logs[:LEAN_LINES],
        logs_more=content.logs_more + len(content.logs[LEAN_LINES:]),
        nodes=(),
        no_nodes="The list of what was collected is left out: it would make this page larger than "
        "a page should be. The files are in the directory nodes."
        if content.nodes
        else content.no_nodes,
    )


def render(content: Page) -> str:
    """Render the page as HTML."""
    return rendered("report.html", page=content)
