"""Libraries that find no room where the process may use few addresses (``ulimit -v``)."""

from __future__ import annotations

import resource

from harness.errors import HarnessError


def no_room(error: BaseException) -> HarnessError | None:
    """``error`` in a sentence where a library could not be loaded under such a limit: the copy that
    tries it first (``cli.entry``) may have had room for it by a hair.
    """
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    # What the loader of libraries of C says, also within the words of numpy.
    mapped = isinstance(error, ImportError) and "failed to map segment" in str(error)
    if not mapped or limit == resource.RLIM_INFINITY:
        return None
    # numpy names no module.
    name = getattr(error, "name", None) or ("numpy" if "numpy" in str(error) else "a library")
    within = f"within {limit >> 20} MiB of addresses (ulimit -v)"
    return HarnessError(f"{name.partition('.')[0]}: it can't be loaded {within}")
