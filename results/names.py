"""What keys are called that were no integers where their history was recorded."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from harness.errors import MalformedHistory
from harness.history.files import regular, sha256
from harness.history.footer import require_plausible
from harness.history.jepsen.importing import KEYS_FILE
from harness.rundir import Manifest, RunDirectory


def key_names(run: RunDirectory, manifest: Manifest) -> dict[int, str]:
    """The names by key; empty where all keys were integers.

    Raises ``MalformedHistory`` where the file is not the one that was sealed.
    """
    path = run.history / KEYS_FILE
    expected = manifest.checksums.get(path.relative_to(run.root).as_posix())
    if expected is None:
        return {}
    try:
        if (found := sha256(path)) != expected:
            reason = f"expected SHA-256 {expected}, found {found}: it is not what was sealed"
            raise MalformedHistory(str(path), "", reason)
        require_plausible(path)
        rows = pq.read_table(regular(path)).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise MalformedHistory(str(path), "", f"it can't be read: {error}") from error
    return {row["key"]: row["name"] for row in rows}
