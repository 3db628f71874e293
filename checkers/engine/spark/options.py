"""Where Spark runs and with what: the part of an analysis that its verdict does not depend on."""

from __future__ import annotations

import msgspec

LOCAL = "local[*]"


class SparkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``master`` is one of Spark's (``local[2]``, ``spark://host:7077``, ``yarn``,
    ``k8s://https://host``). ``environment`` is a packed environment (``packed_environment``) for
    workers that have Python and nothing of this package; without it they run this process's
    interpreter, by the same path. ``conf`` are settings of Spark's, which win over those made here.
    ``ui``: Spark's own pages are served, on the loopback.
    """

    master: str = LOCAL
    environment: str | None = None
    conf: tuple[tuple[str, str], ...] = ()
    ui: bool = False

    @property
    def local(self) -> bool:
        """Whether all of it runs on this machine, in processes of this one's."""
        return self.master.startswith("local")


ON_THIS_MACHINE = SparkOptions()
