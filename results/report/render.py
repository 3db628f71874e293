"""The report of a run: one HTML file without dependencies, whole without a script.

Its content security policy forbids everything but its one style sheet and its one script (each by
hash) and pictures that are inside it, and every text passes ``harness.text.inert`` and is escaped,
so that a node's output is shown and never executed. The script adds convenience alone: it reads
figures of ours, and copies, hides or shows what the page holds.
"""

from __future__ import annotations

import base64
import gc
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

import attrs
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from harness.errors import FiredrillError, MalformedHistory
from harness.history.files import write_atomically
from harness.run.directory import RunDirectory
from harness.text import inert
from results.report.page import Page, page
from results.report.run_data import gather
from results.report.tabulate import CELL_CHARS

LIMIT_BYTES = 2_000_000  # a page that opens at once, and that goes into a mail
LEAN_FAULTS, LEAN_EXAMPLES, LEAN_LINES = 60, 1, 20


def write_report(run: RunDirectory) -> Path:
    """Write ``run.report`` from the run directory, in one step, and return its path.

    Raises ``MalformedHistory`` where the run holds no sealed or recovered history, or no page can
    be made of its content.
    """
    with _collector_paused():
        material = gather(run)
        try:
            encoded = _encoded(page(material))
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
        nodes=(),
    )


def render(content: Page) -> str:
    """Render the page as HTML."""
    return rendered("report.html", page=content)


def rendered(template: str, **content: object) -> str:
    """Render one of our templates with our style sheet, our script, and the policy for them."""
    environment = Environment(
        loader=PackageLoader("results"),
        autoescape=True,
        # A misspelt field fails, instead of leaving a gap in the page.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    style, script = (_own(f"report.{kind}") for kind in ("css", "js"))
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "img-src data:"
    )
    return environment.get_template(template).render(
        **content,
        style=Markup(style),  # noqa: S704 (our own file)
        script=Markup(script),  # noqa: S704 (likewise)
        policy=policy,
    )


def _own(name: str) -> str:
    return resources.files("results").joinpath("templates", name).read_text("utf-8")


def _finalize(value: object) -> object:
    """Make every text of the template inert; the page's own markup passes unchanged."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return inert(value, CELL_CHARS)


def _hash(text: str) -> str:
    """Return a source expression of a content security policy for an inline element."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
