"""The command and the configuration of a node of Apache Ignite 3, by the plan's options.

The values that make a node small and quick on a crowded machine are measured ones: C1 only, a
serial collector, half a GiB of heap, a ping of half a second with a multiplier of 2 (with 1 a node
that starves for a moment is thrown out, and stays out).
"""

from __future__ import annotations

from clusters.ignite3.options import ATTRIBUTE, Options, statements
from harness.protocols.cluster import Address

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


def options_file(jars: tuple[str, ...], library: str = f"{HOME}/lib") -> str:
    """The file of arguments that every node's ``java`` reads; ``jars`` of the directory ``library``
    in the order of the archive's class path.
    """
    opened = (f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED)
    path = ":".join(f"{library}/{jar}" for jar in jars)
    return "\n".join((*opened, "-cp", path)) + "\n"


def command(
    heap_mib: int,
    archive: str,
    config: str,
    work: str,
    name: str,
    rest_host: str,
    home: str = HOME,
) -> tuple[str, ...]:
    """The command that starts a node. ``archive`` is the option that names the archive of classes;
    REST, which takes code to deploy from any caller, listens on ``rest_host`` alone: its server has
    an option for that, the node's configuration has none.
    """
    return (
        f"{home}/jre/bin/java",
        "-Xms64m",
        f"-Xmx{heap_mib}m",
        *JVM,
        f"-Djava.util.logging.config.file={home}/logging.properties",
        f"-Dmicronaut.server.host={rest_host}",
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
    raft = [f"raft.fsync = {str(options.fsync).lower()}"]
    if options.raft_retry_ms is not None:
        raft.append(f"raft.retryTimeoutMillis = {options.raft_retry_ms}")
    raft_lines = "\n  ".join(raft)
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
  clientConnector {{
    port = {client.port}
    listenAddresses = ["{client.host}"]
    sendServerExceptionStackTraceToClient = false
  }}
  rest.port = {rest.port}
  nodeAttributes.nodeAttributes {{ {ATTRIBUTE} = {"data" if data else "nothing"} }}
  storage.profiles {{ default {{ engine = aipersist, sizeBytes = {options.storage_mib << 20} }} }}
  {raft_lines}
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
    """The statements that this node executes meanwhile: zones, tables and rows need classes of
    their own, and the planner of SQL some thousand.
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
