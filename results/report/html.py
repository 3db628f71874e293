"""Our templates as HTML: one style sheet, one script, and the policy that allows both by hash and
nothing else. Imports no tables and no plots, so that a page over runs costs little.
"""

from __future__ import annotations

import base64
import hashlib
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from harness.exit_codes import Outcome
from harness.text import inert
from results.report.tabulate import CELL_CHARS
from results.store.store import is_run_id

MARKS = {
    Outcome.VIOLATION: "\u2715",
    Outcome.HARNESS_ERROR: "!",
    Outcome.UNKNOWN: "?",
    Outcome.REGRESSION: "\u2193",
    Outcome.VALID: "\u2713",
}


def rendered(template: str, **content: object) -> str:
    """Render one of our templates with our style sheet, our script, and the policy for them."""
    style, script = (own_text(f"report.{kind}") for kind in ("css", "js"))
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "img-src data:"
    )
    return (
        environment()
        .get_template(template)
        .render(
            **content,
            style=Markup(style),  # noqa: S704 (our own file)
            script=Markup(script),  # noqa: S704 (likewise)
            policy=policy,
        )
    )


def environment() -> Environment:
    """Return what renders our templates: every text in them is escaped and inert."""
    found = Environment(
        loader=PackageLoader("results"),
        autoescape=True,
        # A misspelt field fails, instead of leaving a gap in the page.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    found.tests["run_name"] = lambda text: is_run_id(str(text).split(" ")[0])
    return found


def own_text(name: str) -> str:
    """Return our template, style sheet or script ``name`` as it stands."""
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
