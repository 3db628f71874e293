"""The plan's ``[system]`` table for Apache Ignite 3, and what a node is told because of it.

The values that make a node small and quick on a crowded machine are measured ones: C1 only, a
serial collector, half a GiB of heap, a ping of half a second with a multiplier of 2 (with 1 a node
that starves for a moment is thrown out, and stays out).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from harness.cluster import Address

RELEASE: Final = "3.1.0"
HOME = "/opt/ignite"  # in the node's image
ARCHIVE_FILE = "classes.jsa"
ARCHIVE = f"{HOME}/{ARCHIVE_FILE}"
JVM = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xss512k",
    "-XX:+ExitOnOutOfMemoryError",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dfile.encoding=UTF-8",
)
MAIN = "org.apache.ignite.internal.app.IgniteRunner"
_OPENED = (
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.nio", "java.math"),
    *("java.util", "java.time", "jdk.internal.misc", "jdk.internal.access", "sun.nio.ch"),
    "sun.security.x509",
)
LOGGING = """\
handlers=java.util.logging.ConsoleHandler
.level=INFO
java.util.logging.ConsoleHandler.formatter=org.apache.ignite.internal.lang.JavaLoggerFormatter
java.util.logging.ConsoleHandler.level=INFO
java.util.logging.ConsoleHandler.encoding=UTF-8
"""
ATTRIBUTE = "holds"  # of the nodes that the zone's filter selects

_Count = Annotated[int, Meta(ge=1, le=64)]
_Timer = Annotated[int, Meta(ge=0, le=2**31 - 1)]  # seconds; the largest one is never
_Mib = Annotated[int, Meta(ge=64, le=1 << 20)]


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first ``system_nodes`` nodes hold cluster management and metastorage, the last
    ``gateway_nodes`` nothing: they only serve clients. All others hold data, and the system nodes,
    too, unless ``system_apart`` keeps them from it. ``mode`` is the zone's consistency mode, strong
    or highly available. ``quorum`` of ``None`` is the release's own choice. ``reset_timeout_s`` is
    its ``partitionDistributionResetTimeout``; ``scale_down_s`` of ``None`` is OFF, as it comes.
    ``rpc_timeout_ms`` is how long the end of a transaction waits for a replica that is gone. With
    the release's own its locks were seen to stand for 57 to 64 s; with 10 s some of those that had
    lost their majority stood for good.
    """

    release: Literal["3.1.0"] = RELEASE
    access: Literal["key-value", "sql"] = "key-value"
    mode: Literal["SC", "HA"] = "SC"
    system_nodes: _Count = 3
    system_apart: bool = False
    gateway_nodes: Annotated[int, Meta(ge=0, le=64)] = 0
    partitions: _Count = 8
    replicas: _Count = 3
    quorum: _Count | None = None
    heap_mib: _Mib = 512
    storage_mib: _Mib = 128
    ping_ms: Annotated[int, Meta(ge=50, le=60_000)] = 500
    suspicion: Annotated[int, Meta(ge=1, le=100)] = 2
    lease_ms: Annotated[int, Meta(ge=2_000, le=120_000)] = 5_000
    rpc_timeout_ms: Annotated[int, Meta(ge=1_000, le=600_000)] = 60_000
    fsync: bool = False
    failure_handler: Literal["noop", "stop", "stopOrHalt"] = "noop"
    scale_down_s: _Timer | None = None
    reset_timeout_s: _Timer = 0


def data_nodes(options: Options, nodes: tuple[str, ...]) -> tuple[str, ...]:
    """Those of ``nodes`` that the zone's filter selects."""
    first = options.system_nodes if options.system_apart else 0
    return nodes[first : len(nodes) - options.gateway_nodes]


def quorums(replicas: int) -> tuple[int, int]:
    """The smallest and the largest quorum that the release takes of so many replicas."""
    least = min(replicas, 2)
    return least, max(least, (replicas + 1) // 2)


def blocking(options: Options) -> int:
    """How many voters of a partition have to be out for the others to be no majority. The release
    makes voters of twice the quorum less one, and learners of the other replicas.
    """
    usual = min(options.replicas, 2) if options.replicas <= 4 else 3
    voters = min(2 * (options.quorum or usual) - 1, options.replicas)
    return voters - voters // 2


def options_file(jars: tuple[str, ...], library: str = f"{HOME}/lib") -> str:
    """The file of arguments that every node's ``java`` reads; ``jars`` of the directory ``library``
    in the order of the archive's class path.
    """
    opened = (f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED)
    path = ":".join(f"{library}/{jar}" for jar in jars)
    return "\n".join((*opened, "-cp", path)) + "\n"


def command(
    heap_mib: int, archive: str, config: str, work: str, name: str, home: str = HOME
) -> tuple[str, ...]:
    """What starts a node. ``archive`` is the option that names the archive of classes."""
    return (
        f"{home}/jre/bin/java",
        "-Xms64m",
        f"-Xmx{heap_mib}m",
        *JVM,
        f"-Djava.util.logging.config.file={home}/logging.properties",
        archive,
        f"@{home}/options",
        MAIN,
        *("--config-path", config, "--work-dir", work, "--node-name", name),
    )


def node_config(
    options: Options,
    *,
    peer: Address,
    client: Address,
    rest: Address,
    seeds: tuple[Address, ...],
    data: bool,
) -> str:
    """A node's own configuration. It is bound to one address: with a wildcard it would advertise
    any that the machine has.
    """
    others = ", ".join(f'"{seed}"' for seed in seeds)
    return f"""\
ignite {{
  network {{
    port = {peer.port}
    listenAddresses = ["{peer.host}"]
    nodeFinder {{ type = STATIC, netClusterNodes = [{others}] }}
    membership {{
      membershipSyncIntervalMillis = 1000
      failurePingIntervalMillis = {options.ping_ms}
      scaleCube {{
        membershipSuspicionMultiplier = {options.suspicion}
        gossipIntervalMillis = 50
      }}
    }}
  }}
  clientConnector {{ port = {client.port}, sendServerExceptionStackTraceToClient = false }}
  rest.port = {rest.port}
  nodeAttributes.nodeAttributes {{ {ATTRIBUTE} = {"data" if data else "nothing"} }}
  storage.profiles {{ default {{ engine = aipersist, sizeBytes = {options.storage_mib << 20} }} }}
  raft.fsync = {str(options.fsync).lower()}
  failureHandler {{ handler.type = {options.failure_handler}, dumpThreadsOnFailure = false }}
}}
"""


def training_config() -> str:
    """The configuration of the one node that the archive of classes is made with, where
    ``train.py`` looks for it.
    """

    def at(port: int) -> Address:
        return Address(host="127.0.0.1", port=port)

    return node_config(
        Options(),
        peer=at(3344),
        client=at(10800),
        rest=at(10300),
        seeds=(at(3344),),
        data=True,
    )


def training_statements() -> tuple[str, ...]:
    """What that node executes meanwhile: zones, tables and rows need classes of their own, and the
    planner of SQL some thousand.
    """
    return (
        *statements(Options(partitions=2, replicas=1)),
        "INSERT INTO ITEMS (K, V) VALUES (1, '[1]'), (2, '[2]')",
        "UPDATE ITEMS SET V = '[1,2]' WHERE K = 1",
        "SELECT K, V FROM ITEMS",
    )


def cluster_config(options: Options) -> str:
    """The configuration that the whole cluster shares, given when it is initialised."""
    return f"""\
ignite {{
  replication.leaseExpirationIntervalMillis = {options.lease_ms}
  replication.rpcTimeoutMillis = {options.rpc_timeout_ms}
  system.properties.partitionDistributionResetTimeout = "{options.reset_timeout_s}"
}}
"""


TABLE, ZONE = "ITEMS", "DRILL"
_MODES = {"SC": "STRONG_CONSISTENCY", "HA": "HIGH_AVAILABILITY"}


def statements(options: Options) -> tuple[str, ...]:
    """The DDL of the zone and the table. The default zone goes: its 25 raft groups cost."""
    down = "OFF" if options.scale_down_s is None else str(options.scale_down_s)
    quorum = "" if options.quorum is None else f"QUORUM SIZE {options.quorum}, "
    return (
        f"CREATE ZONE {ZONE} (PARTITIONS {options.partitions}, REPLICAS {options.replicas}, "
        f"{quorum}NODES FILTER '$[?(@.{ATTRIBUTE} == \"data\")]', "
        f"CONSISTENCY MODE '{_MODES[options.mode]}', AUTO SCALE DOWN {down}) "
        "STORAGE PROFILES ['default']",
        f"ALTER ZONE {ZONE} SET DEFAULT",
        'DROP ZONE "Default"',
        f"CREATE TABLE {TABLE} (K BIGINT PRIMARY KEY, V VARCHAR) ZONE {ZONE}",
    )
