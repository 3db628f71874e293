"""The nodes' REST interface: just enough HTTP. Each call has a deadline of its own, and none waits
for another: a silent node delays no other call.
"""

from __future__ import annotations

import asyncio
import http
import re
from typing import TypeVar
from urllib.parse import urlencode

import msgspec

from harness.protocols.cluster import Address

ROOT = "/management/v1"
LOOK_LIMIT_S = 1.5  # a node that is cut off or paused must not hold the others up
ANSWER_LIMIT_BYTES = 1 << 22  # some hundred bytes for each replica of a partition
STARTED = "STARTED"
AVAILABLE = "AVAILABLE"
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})", re.ASCII)

T = TypeVar("T")


class State(msgspec.Struct, frozen=True):
    """``/node/state``."""

    name: str
    state: str


class Version(msgspec.Struct, frozen=True):
    """``/node/version``."""

    version: str


class Member(msgspec.Struct, frozen=True):
    """A node of a topology."""

    name: str


class PartitionState(msgspec.Struct, frozen=True, rename="camel"):
    """One partition as a node (local) or all of them (global) see it."""

    partition_id: int
    state: str


class PartitionStates(msgspec.Struct, frozen=True):
    """An answer of the recovery endpoints."""

    states: tuple[PartitionState, ...]


class RestRefusal(Exception):
    """A node answered with another status than 200."""


async def node_state(at: Address) -> str | None:
    """The state that the node reports of itself; ``None`` where it does not answer."""
    found = await _get(at, "/node/state", State)
    return found.state if found else None


async def version(at: Address) -> str | None:
    """The release that the node runs."""
    found = await _get(at, "/node/version", Version)
    return found.version if found else None


async def logical_topology(at: Address) -> frozenset[str] | None:
    """Names of the nodes in the logical topology, as this node knows it."""
    found = await _get(at, "/cluster/topology/logical", tuple[Member, ...])
    return None if found is None else frozenset(member.name for member in found)


async def physical_topology(at: Address) -> frozenset[str] | None:
    """Names of the nodes that this node talks to, in the logical topology or not, and its own."""
    found = await _get(at, "/cluster/topology/physical", tuple[Member, ...])
    return None if found is None else frozenset(member.name for member in found)


async def local_states(at: Address, node: str, zone: str) -> tuple[PartitionState, ...] | None:
    """The replicas of ``zone`` that ``node`` reports to hold itself."""
    query = urlencode({"zoneNames": zone, "nodeNames": node})
    found = await _get(at, f"/recovery/zone/state/local?{query}", PartitionStates)
    return None if found is None else found.states


async def global_states(at: Address, zone: str) -> tuple[PartitionState, ...] | None:
    """Every partition of ``zone`` as the whole cluster sees it."""
    query = urlencode({"zoneNames": zone})
    found = await _get(at, f"/recovery/zone/state/global?{query}", PartitionStates)
    return None if found is None else found.states


async def initialise(
    at: Address, nodes: tuple[str, ...], configuration: str, limit_s: float
) -> str:
    """Make a cluster, with management and metastorage on ``nodes``; empty, or why it failed."""
    body = msgspec.json.encode(
        {
            "metaStorageNodes": nodes,
            "cmgNodes": nodes,
            "clusterName": "firedrill",
            "clusterConfiguration": configuration,
        }
    )
    try:
        await _call(at, "POST", "/cluster/init", body, limit_s)
    except TimeoutError:
        return f"no answer within {limit_s:.1f} s"
    except (OSError, RestRefusal) as error:
        return f"{type(error).__name__}: {error}"
    return ""


async def _get(at: Address, path: str, kind: type[T]) -> T | None:
    try:
        text = await _call(at, "GET", path, b"", LOOK_LIMIT_S)
        return msgspec.json.decode(text, type=kind)
    except (OSError, RestRefusal, msgspec.DecodeError):
        return None


async def _call(at: Address, method: str, path: str, body: bytes, limit_s: float) -> bytes:
    """The answer's body, all of it within ``limit_s``. Raises ``OSError`` (``TimeoutError`` is one)
    and ``Refused``. By version 1.0 an answer ends with its connection.
    """
    head = (
        f"{method} {ROOT}{path} HTTP/1.0\r\nHost: {at}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    async with asyncio.timeout(limit_s):
        reader, writer = await asyncio.open_connection(
            at.host,
            at.port,
            limit=ANSWER_LIMIT_BYTES,
            local_addr=(at.source, 0) if at.source else None,
        )
        try:
            writer.write(head.encode("ascii") + body)
            answer = await reader.read(ANSWER_LIMIT_BYTES)
            while more := await reader.read(ANSWER_LIMIT_BYTES):
                answer += more
                if len(answer) > ANSWER_LIMIT_BYTES:
                    raise RestRefusal(f"{method} {path}: more than {ANSWER_LIMIT_BYTES} bytes")
        finally:
            writer.close()
    status, text = _parted(answer)
    if status != http.HTTPStatus.OK:
        raise RestRefusal(f"{method} {path}: {status} {text[:300].decode('utf-8', 'replace')}")
    return text


def _parted(answer: bytes) -> tuple[int, bytes]:
    """Status and body. Raises ``Refused`` for bytes that are no HTTP answer."""
    head, _, text = answer.partition(b"\r\n\r\n")
    status = _STATUS.match(head)
    if status is None:
        raise RestRefusal(f"expected an answer of HTTP (got {answer[:40]!r})")
    return int(status[1]), text
