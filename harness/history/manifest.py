"""Reading and writing ``manifest.json``.

The file is JSON with sorted keys, and one key more than ``Manifest`` has: ``digest``, the SHA-256
of the rest in canonical form, which detects a damaged manifest.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter

import msgspec

from harness.errors import MalformedHistory
from harness.history.durable_files import write_atomically
from harness.history.regular_files import read_small
from harness.history.run_directory import SCHEMA_VERSION, Manifest, RunDirectory, require_plain
from harness.protocols.promise import MAX_LOG_PATTERN_CHARS, MAX_LOG_PATTERNS
from harness.text import brackets, inert, inert_json, key_twice

RUNNING, SEALED, PREFIX = "running", "sealed", "prefix"
STATES = (RUNNING, SEALED, PREFIX)

# A manifest has a few kilobytes; a larger file is no manifest.
MAX_MANIFEST_BYTES = 16 << 20
# One for each log, which has 150 bytes.
MAX_BRACKETS = 100_000


class _Version(msgspec.Struct):
    schema_version: int


class _Stored(Manifest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    digest: str = ""


def write_manifest(run: RunDirectory, manifest: Manifest) -> None:
    """Replace the run's manifest in one step. Raises ``HarnessError`` where the disk refuses."""
    write_atomically(run.manifest, _encoded(manifest))


def plan_drove(run: RunDirectory, manifest: Manifest) -> bool:
    """Tell whether the plan in ``run`` drove its history. The plan beside an imported one drove
    nothing, unless the import took it over: its manifest then has the plan's sum.
    """
    if isinstance(manifest.origin, msgspec.UnsetType):
        return run.plan.exists()  # those of the first versions have no checksum
    return run.plan.name in manifest.checksums


def read_manifest(run: RunDirectory, *, plain: bool = False) -> Manifest:
    """The run's manifest, once ``require_plain`` holds: every reader of a run calls this first.
    ``plain``: the caller has just called that. Raises ``MalformedHistory`` where there is no
    manifest or it is damaged.
    """
    path = run.manifest
    if not plain:
        require_plain(run)
    content = _content(run)
    try:
        # First and alone: another version is named as such, not by the fields that are new in it.
        version = msgspec.json.decode(content, type=_Version).schema_version
        _require_version(run, version)
        stored, twice = msgspec.json.decode(content, type=_Stored), key_twice(content)
        digest = _digest_of(content)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise MalformedHistory(str(path), "", f"expected a manifest, found {error}") from error
    if twice:
        reason = f"expected each key once in an object, found {twice[:80]!r} twice"
        raise MalformedHistory(str(path), "", reason)
    manifest = Manifest(**{name: getattr(stored, name) for name in Manifest.__struct_fields__})
    if stored.digest != digest:
        reason = f"expected the digest {digest}, found {stored.digest or 'none'}"
        raise MalformedHistory(str(path), "", f"{reason}: it was changed after it was written")
    # The digest covers values, not layout: without its last byte the file would still pass.
    if not content.endswith(b"}\n"):
        reason = "expected a line break after the last brace, found none: it was cut off"
        raise MalformedHistory(str(path), "", reason)
    _require_declarable(run, manifest)
    if manifest.state not in STATES:
        reason = f"expected a state of {', '.join(STATES)}, found {manifest.state!r}"
        raise MalformedHistory(str(path), "", reason)
    return manifest


def _encoded(manifest: Manifest) -> bytes:
    fields = {name: getattr(manifest, name) for name in Manifest.__struct_fields__}
    stored = _Stored(**fields, digest=_digest(manifest))
    content = msgspec.json.format(msgspec.json.encode(stored, order="sorted"), indent=2)
    return inert_json(content) + b"\n"


def _content(run: RunDirectory) -> bytes:
    path = run.manifest
    try:
        content = read_small(path, MAX_MANIFEST_BYTES)
    except FileNotFoundError as error:
        reason = "there is no manifest, so this is no run (or it ended before it began)"
        raise MalformedHistory(str(path), "", reason) from error
    except OSError as error:
        raise MalformedHistory(str(path), "", f"it can't be read: {error.strerror}") from error
    if (count := brackets(content)) > MAX_BRACKETS:
        reason = f"expected at most {MAX_BRACKETS} lists and objects, found {count}"
        raise MalformedHistory(str(path), "", reason)
    return content


def _require_version(run: RunDirectory, version: int) -> None:
    if version != SCHEMA_VERSION:
        reason = f"expected schema version {SCHEMA_VERSION}, found {version}"
        raise MalformedHistory(str(run.manifest), "", reason)


def _require_declarable(run: RunDirectory, manifest: Manifest) -> None:
    """Refuse what no system can declare: it would make any history a violation."""
    declared = manifest.declaration
    times = {"liveness_s": declared.liveness_s} | {
        f"promises.{promise.kind}.staleness_s": promise.staleness_s for promise in declared.promises
    }
    for name, time_s in times.items():
        if isinstance(time_s, float | int) and not 0 <= time_s < math.inf:
            reason = f"expected a time of 0 s or more, found {time_s}"
            raise MalformedHistory(str(run.manifest), f"declaration.{inert(name)}", reason)
    kinds = Counter(promise.kind for promise in declared.promises)
    for kind, count in kinds.items():
        if count > 1:
            reason = f"expected one promise of kind {inert(kind)}, found {count}"
            raise MalformedHistory(str(run.manifest), "declaration.promises", reason)
    _require_patterns(run, manifest)


def _require_patterns(run: RunDirectory, manifest: Manifest) -> None:
    logs = manifest.declaration.logs
    if isinstance(logs, msgspec.UnsetType):
        return
    if any(not pattern.regex for pattern in logs):
        reason = "expected patterns of log lines, found one that is in every line"
        raise MalformedHistory(str(run.manifest), "declaration.logs", reason)
    chars = max((len(pattern.regex) + len(pattern.name) for pattern in logs), default=0)
    if len(logs) > MAX_LOG_PATTERNS or chars > MAX_LOG_PATTERN_CHARS:
        most = f"at most {MAX_LOG_PATTERNS} log patterns of {MAX_LOG_PATTERN_CHARS} characters"
        reason = f"expected {most}, found {len(logs)} of up to {chars}"
        raise MalformedHistory(str(run.manifest), "declaration.logs", reason)


def _digest_of(content: bytes) -> str:
    """The digest of what is stored, not of what is decoded: decoding drops an unknown name."""
    values = msgspec.json.decode(content, type=dict[str, object])
    values.pop("digest", None)
    return _digest(values)


def _digest(manifest: Manifest | dict[str, object]) -> str:
    return hashlib.sha256(msgspec.json.encode(manifest, order="sorted")).hexdigest()
