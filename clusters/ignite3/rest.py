"""What nodes tell over REST: just enough HTTP, on threads, each call with a limit of its own."""

from __future__ import annotations

import asyncio
import http.client
from typing import TypeVar
from urllib.parse import urlencode

import msgspec

from harness.cluster import Address

ROOT = "/management/v1"
LOOK_LIMIT_S = 1.5  # a node that is cut off or paused must not hold the others up
INIT_LIMIT_S = 20.0
STARTED = "STARTED"
AVAILABLE = "AVAILABLE"

T = TypeVar("T")


class State(msgspec.Struct, frozen=True):
    """``/node/state``."""

    name: str
    state: str


class Member(msgspec.Struct, frozen=True):
    """A node of a topology."""

    name: str


class PartitionState(msgspec.Struct, frozen=True, rename="camel"):
    """One partition as a node (local) or all of them (global, without ``node_name``) see it."""

    partition_id: int
    state: str
    zone_name: str
    node_name: str = ""


class PartitionStates(msgspec.Struct, frozen=True):
    """An answer of the recovery endpoints."""

    states: tuple[PartitionState, ...]


class Refused(Exception):
    """A node answered with another status than 200."""


async def node_state(at: Address) -> str | None:
    """The node's own word on itself; ``None`` where it does not answer."""
    found = await _get(at, "/node/state", State)
    return found.state if found else None


async def logical_topology(at: Address) -> frozenset[str] | None:
    """Names of the nodes that are in, as this one knows."""
    found = await _get(at, "/cluster/topology/logical", tuple[Member, ...])
    return None if found is None else frozenset(member.name for member in found)


async def physical_topology(at: Address) -> frozenset[str] | None:
    """Names of the nodes that this one talks to, whether they are in or not, and its own."""
    found = await _get(at, "/cluster/topology/physical", tuple[Member, ...])
    return None if found is None else frozenset(member.name for member in found)


async def local_states(at: Address, node: str, zone: str) -> tuple[PartitionState, ...] | None:
    """The replicas that ``node`` holds of ``zone``, asked at itself."""
    query = urlencode({"zoneNames": zone, "nodeNames": node})
    found = await _get(at, f"/recovery/zone/state/local?{query}", PartitionStates)
    return None if found is None else found.states


async def global_states(at: Address, zone: str) -> tuple[PartitionState, ...] | None:
    """Every partition of ``zone`` as the whole cluster sees it."""
    query = urlencode({"zoneNames": zone})
    found = await _get(at, f"/recovery/zone/state/global?{query}", PartitionStates)
    return None if found is None else found.states


async def initialise(at: Address, nodes: tuple[str, ...], configuration: str) -> str:
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
        await asyncio.to_thread(_call, at, "POST", "/cluster/init", body, INIT_LIMIT_S)
    except (OSError, http.client.HTTPException, Refused) as error:
        return f"{type(error).__name__}: {error}"
    return ""


async def _get(at: Address, path: str, kind: type[T]) -> T | None:
    try:
        text = await asyncio.to_thread(_call, at, "GET", path, None, LOOK_LIMIT_S)
        return msgspec.json.decode(text, type=kind)
    except (OSError, http.client.HTTPException, Refused, msgspec.DecodeError):
        return None


def _call(at: Address, method: str, path: str, body: bytes | None, limit_s: float) -> bytes:
    connection = http.client.HTTPConnection(at.host, at.port, timeout=limit_s)
    try:
        headers = {"Content-Type": "application/json"} if body else {}
        connection.request(method, f"{ROOT}{path}", body=body, headers=headers)
        answer = connection.getresponse()
        text = answer.read()
    finally:
        connection.close()
    if answer.status != http.HTTPStatus.OK:
        raise Refused(f"{method} {path}: {answer.status} {text[:300].decode('utf-8', 'replace')}")
    return text
