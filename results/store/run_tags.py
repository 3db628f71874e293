"""Tags of a run: words that people and campaigns attach to it, kept in the run directory.

A tag is ``name`` or ``name=value``; of a name a run has one. Tags are no evidence: they may be
changed at any time, and no verdict depends on them.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator

import msgspec

from harness.errors import HarnessError, MalformedHistory, UsageError
from harness.history.durable_files import disk_failure, write_atomically
from harness.history.regular_files import read_small
from harness.history.run_directory import RunDirectory, require_plain
from results.store.store import LOCK_LIMIT_S, lock_for_a_moment

MAX_TAGS = 64
MAX_TAGS_BYTES = 64 << 10
TAG = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,47}(?:=[^\s\x00-\x1f\x7f]{1,200})?")


def split_tag(tag: str) -> tuple[str, str]:
    """Return the name and the value of ``tag``, which is empty for one without."""
    name, _, value = tag.partition("=")
    return name, value


def require_tags(tags: Iterable[str]) -> None:
    """Refuse what is no tag. Raises ``UsageError``."""
    for tag in tags:
        if not TAG.fullmatch(tag) or not tag.isprintable():
            raise UsageError(
                f"tag {tag!r}: expected NAME or NAME=VALUE, a name of letters, digits, '_', '.' "
                "and '-' that begins with a letter, and a value without blanks"
            )


def read_tags(run: RunDirectory, *, plain: bool = False) -> tuple[str, ...]:
    """Return the tags of ``run``, sorted; none where there are none, or the file is not one of
    tags: the directory may come from elsewhere. ``plain``: the caller has just called
    ``require_plain``.
    """
    try:
        if not plain:
            require_plain(run)
        found = msgspec.json.decode(read_small(run.tags, MAX_TAGS_BYTES), type=list[str])
        require_tags(found)
    except (OSError, MalformedHistory, UsageError, msgspec.MsgspecError, UnicodeDecodeError):
        return ()
    return tuple(sorted(found)[:MAX_TAGS])


def change_tags(run: RunDirectory, add: Iterable[str] = (), remove: Iterable[str] = ()) -> None:
    """Add and remove tags of ``run``; an added one replaces the one of its name, a removed one is
    named with or without its value. Raises ``UsageError`` and ``HarnessError``.
    """
    added = list(add)
    require_tags(added)
    require_plain(run)
    names = {split_tag(tag)[0] for tag in added}
    gone = set(remove)
    with _changing(run):
        kept = [
            tag
            for tag in read_tags(run)
            if tag not in gone and split_tag(tag)[0] not in gone | names
        ]
        tags = sorted({*kept, *added})
        if len(tags) > MAX_TAGS:
            raise UsageError(f"run {run.root.name}: {len(tags)} tags, expected at most {MAX_TAGS}")
        write_atomically(run.tags, msgspec.json.encode(tags) + b"\n")


@contextlib.contextmanager
def _changing(run: RunDirectory) -> Iterator[None]:
    """Let no other process change tags within the block. Raises ``HarnessError``."""
    # The store and not the run: a judgement holds that for long, and tags may change meanwhile.
    directory = run.root.resolve().parent
    try:
        lock = lock_for_a_moment(directory)
    except OSError as error:
        raise disk_failure("lock", directory, error, "the tags stay as they were") from error
    if lock is None:
        reason = f"another process holds {directory} for over {LOCK_LIMIT_S:g} s"
        raise HarnessError(f"run {run.root.name}: its tags stay as they were: {reason}")
    try:
        yield
    finally:
        os.close(lock)
