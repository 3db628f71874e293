"""The options that ``campaign`` and ``nightly`` share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import attrs
import click

from cli import quantities
from harness.campaigns.cell_table import TABLE

C = TypeVar("C", bound=Callable[..., Any])


@attrs.frozen(kw_only=True)
class CampaignOptions:
    """Which cells of a campaign are run, and how. ``shard`` is ``K/N``, its parts balanced by the
    table ``durations``; ``others`` are stores whose results are taken in; ``no_run`` runs nothing;
    ``jobs`` cells are simulated at once. No cell begins after ``budget_s``, by default the file's.
    """

    shard: str | None = None
    durations: Path | None = None
    others: tuple[Path, ...] = ()
    no_run: bool = False
    jobs: int | None = None
    shrink: bool = True
    budget_s: float | None = None


def campaign_options(command: C) -> C:
    """Give ``command`` the options as ``options``."""

    @click.option(
        "--shard",
        metavar="K/N",
        help="Run the K-th of N parts of the cells, which take about as long as each other; "
        "afterwards --merge them with --no-run.",
    )
    @click.option(
        "--durations",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="TABLE",
        help=f"The {TABLE} of an earlier campaign, by whose times shards are balanced; all shards "
        "have to be given the same.",
    )
    @click.option(
        "--merge",
        "others",
        multiple=True,
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Take in the results of this campaign in another store; repeatable. Without one that "
        "is not there, the campaign is unknown at best.",
    )
    @click.option("--no-run", is_flag=True, help="Run nothing: the results of what is known.")
    @click.option(
        "--jobs", type=click.IntRange(1), help="Simulated cells at once (as many as cores)."
    )
    @click.option(
        "--shrink/--no-shrink", default=True, help="Look for the smallest plan that fails."
    )
    @click.option(
        "--time-budget",
        "budget_s",
        callback=quantities.seconds,
        metavar="TIME",
        help="Begin no cell after that time (the file's): 90s, 30m, 8h.",
    )
    @functools.wraps(command)
    def optioned(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        given = {field.name: kwargs.pop(field.name) for field in attrs.fields(CampaignOptions)}
        return command(*args, options=CampaignOptions(**given), **kwargs)

    return cast(C, optioned)
