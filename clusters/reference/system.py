"""The reference store as the harness's system under test: its program, its promises, and its
answers.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

import clusters.reference.node as node_package
from clusters.reference.change_feed import ChangeFeed
from clusters.reference.client import (
    CONNECT_FAILED,
    ERRORS,
    ONE_SHOT,
    ReferenceClient,
    connect,
    dial,
    encode_key,
    one_table,
)
from clusters.reference.cluster_readiness import missing, planned_roles, renumbered, roles_of
from clusters.reference.event_feed import Answer, EventFeed
from clusters.reference.node import bugs
from clusters.reference.node.admin import ask
from clusters.reference.node.catalog.sql_errors import NoSuchObject, ObjectExists, SqlError
from clusters.reference.node.config import (
    Attributes,
    Config,
    Endpoint,
    check,
)
from clusters.reference.node.placement.partitioning import partition_of
from clusters.reference.node.rpc.sessions import SNAPSHOT
from clusters.reference.node.runtime import Connection, ConnectionLost, Network
from clusters.reference.node.tx.primary import STALENESS_S
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import BadMessage
from clusters.reference.node.wire.reports import (
    AdminBody,
    AskChanges,
    AskEvents,
    AskSql,
    AskStates,
    AskStatus,
    ChangeReport,
    EventBatch,
    NodeReport,
    ReplicaReport,
    SqlProblem,
    SqlReport,
    StateReport,
)
from clusters.reference.options import USUAL_REPLICAS, Options
from clusters.reference.zones import (
    JOINED,
    KEYS,
    VIEWS,
    Table,
    Zones,
    alteration,
    announced,
    attributes_text,
    differing,
    keeping,
    unplaced,
    unsettled,
    zones_of,
)
from harness.clock import RunClock
from harness.errors import HarnessError, PlanError
from harness.history.records import StoreEvent
from harness.plan.plan import options as convert
from harness.protocols.changes import ReportedChanges
from harness.protocols.client import READ_WRITE, StoreError
from harness.protocols.cluster import (
    Address,
    Cluster,
    PortSpec,
    Program,
    Provider,
    PythonTree,
    Roles,
)
from harness.protocols.cluster_membership import AttributeValue
from harness.protocols.fail_or_info import ErrorMeaning
from harness.protocols.moments import Moment
from harness.protocols.promise import Declaration, LogPattern, Promise
from harness.protocols.replica_states import LogMark, RecoveredState, ReplicaState
from harness.protocols.statement_language import StatementAnswer
from harness.tasks import together

PEER, CLIENT = "peer", "client"
CONNECT_LIMIT_S = 1.0
ADMIN_LIMIT_S = 1.0  # a node that is cut off or frozen must not hold the others up
WHOLE_LIMIT_S = 5.0  # digests of everything that a node holds take it a moment
# Of a statement that the catalog does not take; all else is an answer that was lost.
REFUSALS = frozenset({SqlError.__name__, *(each.__name__ for each in SqlError.__subclasses__())})
# Of one whose first answer was lost, once it has been carried out.
DONE_BEFORE = frozenset({ObjectExists.__name__, NoSuchObject.__name__})
STATEMENT_LIMIT_S = 5.0
VIEW_LIMIT_S = 1.5  # nodes are asked in turn until one answers, within one look of a proof
POLL_S = 0.1
CONFIG_FILE = "node.json"
LOG_FILE = "node.log"
# A lease that ends, an election and a takeover, each of which may have to be tried again.
LIVENESS_S = 5.0
NODE_SOURCE = Path(node_package.__file__ or "").resolve().parent
REQUIREMENTS = NODE_SOURCE.parents[2] / "requirements" / "node.lock"

LOG_PATTERNS = (
    # The last line of a node on stderr, when it ends without having been told to.
    LogPattern(name="panic", regex=r"^node: |^Fatal Python error", breaks=True),
    LogPattern(name="traceback", regex=r"^Traceback \(most recent call last\)"),
    LogPattern(name="error", regex=r"^\S+ (?:ERROR|CRITICAL) "),
)


def build(
    options: Mapping[str, object],
    nodes: tuple[str, ...],
    seed: int,
    *,
    network: Network | None = None,
    spares: tuple[str, ...] = (),
) -> ReferenceSystem:
    """The system for a plan; ``seed`` decides nothing here. Raises ``PlanError``.

    ``network``: the clients' way to dial; the machine's by default. ``spares`` may join the
    ``nodes`` later.
    """
    usual = {"replicas": min(USUAL_REPLICAS, len(nodes))}
    # What the plan says comes last: replicas that it names are checked, never lowered.
    chosen = convert(Options, usual | dict(options), "system")
    if chosen.replicas > len(nodes):
        limits = f"expected 1 to {len(nodes)}, which is cluster.nodes (got {chosen.replicas})"
        raise PlanError("system.replicas", limits)
    zones = zones_of(chosen, options, nodes, spares)
    if spares and zones is None:
        why = f"nodes join a cluster with distribution zones: system.{KEYS[0]} makes one"
        raise PlanError("cluster.spares", f"expected 0 ({why}; got {len(spares)})")
    try:
        bugs.check(chosen.bugs)
    except bugs.UnknownBug as error:
        raise PlanError("system.bugs", str(error)) from error
    return ReferenceSystem(
        options=chosen, network=network or _real_network(), nodes=nodes, zones=zones
    )


def _real_network() -> Network:
    # Imported where it is wanted: a simulated run must not touch the machine's network at all.
    from clusters.reference.node.runtime.real import TcpNetwork

    return TcpNetwork()


class ReferenceSystem:
    """``harness.protocols.cluster.System`` of the reference store."""

    name = "reference"
    planted_bugs = bugs.KNOWN
    ports = (
        PortSpec(name=PEER, between_nodes=True),
        PortSpec(name=CLIENT, between_nodes=False),
    )

    def __init__(
        self,
        *,
        options: Options,
        network: Network,
        nodes: tuple[str, ...] = (),
        zones: Zones | None = None,
    ) -> None:
        self.errors: dict[str, ErrorMeaning] = ERRORS
        self._options, self._network, self._zones = options, network, zones
        self._nodes = nodes
        self._feed, self._changes = EventFeed(self._flat), ChangeFeed(self._flat)

    @property
    def partitions(self) -> int:
        """How many partitions there are, those of all tables together."""
        return self._options.partitions if self._zones is None else self._zones.partitions

    @property
    def voters(self) -> int | None:
        """The replicas of a partition; ``None`` where statements of the plan make zones."""
        return None if self._options.ddl else self._options.replicas

    @property
    def learners(self) -> int | None:
        """None while no data moves, which zones do by themselves."""
        return 0 if self._zones is None else None

    @property
    def metastorage(self) -> tuple[str, ...]:
        """The nodes that begin it: all, but for those of zones."""
        return self._nodes if self._zones is None else self._zones.system_nodes

    @property
    def management(self) -> tuple[str, ...]:
        """None: metastorage manages the cluster, too."""
        return ()

    @property
    def declaration(self) -> Declaration:
        """Strictly serializable transactions, interactive or in one request, and snapshots of a
        stated age.
        """
        return Declaration(
            system=self.name,
            mode="SC" if self._zones is None else self._zones.mode,
            promises=(
                Promise(kind=READ_WRITE, model="strict-serializable"),
                Promise(kind=ONE_SHOT, model="strict-serializable"),
                # Timestamps order what conflicts, and what one node saw, but not what two nodes
                # did apart in real time: no strict serializability.
                Promise(
                    kind=SNAPSHOT, model="strong-session-serializable", staleness_s=STALENESS_S
                ),
            ),
            transaction_scope="cluster",
            logs=LOG_PATTERNS,
            liveness_s=LIVENESS_S,
            conflicts=codes.CONFLICTS,
            rebalance=msgspec.UNSET if self._zones is None else self._zones.rebalance,
            affinities=msgspec.UNSET if self._zones is None else self._zones.affinities,
        )

    def partition_of(self, key: int) -> int:
        """The partition of ``key``, by the hash that the node uses."""
        if self._zones is not None:
            return self._zones.partition_of(encode_key(key))
        return partition_of(encode_key(key), self.partitions)

    def versions(self) -> dict[str, str]:
        """The hash of the node's source, and the planted bugs if any is on."""
        versions = {"reference-node": source_hash(NODE_SOURCE)}
        if self._options.bugs:
            versions["reference-bugs"] = " ".join(self._options.bugs)
        return versions

    def program(self, node: str, cluster: Cluster) -> Program:
        """One node process, configured for its place in ``cluster``."""
        return self._program(node, cluster, None)

    def _program(self, node: str, cluster: Cluster, attributes: Attributes | None) -> Program:
        options = self._options
        config = Config(
            node=node,
            peer_bind=_endpoint(cluster.bind[node][PEER]),
            client_bind=_endpoint(cluster.bind[node][CLIENT]),
            peers={
                other: _endpoint(cluster.peer[(node, other)][PEER])
                for other in cluster.machines
                if other != node
            },
            data_dir=f"{cluster.work_dir[node]}/data",
            partitions=self.partitions,
            replicas=options.replicas,
            bugs=options.bugs,
            tick_ms=options.tick_ms,
            election_ticks=options.election_ticks,
            snapshot_bytes=options.snapshot_bytes,
            append_entries=options.append_entries,
            appends_ahead=options.appends_ahead,
            power_loss=options.power_loss,
            tuning=options.tuning,
            zoned=None if self._zones is None else self._zones.of(node, attributes),
        )
        # Before any node starts, so that a plan's mistake is named here and not in a node's log.
        check(config)
        return Program(
            argv=("python3", "-m", "clusters.reference.node", "--config", CONFIG_FILE),
            files={CONFIG_FILE: msgspec.json.format(msgspec.json.encode(config))},
            python=(PythonTree(source=str(NODE_SOURCE), package="clusters.reference.node"),),
            requirements=str(REQUIREMENTS),
            log=LOG_FILE,
        )

    async def set_up(self, cluster: Cluster, provider: Provider, deadline_s: float) -> None:
        """Start all nodes at once, and wait until every partition serves."""
        await together(provider.start(node) for node in cluster.nodes)
        if self._zones is not None:
            await self._define(cluster, self._zones.ddl, deadline_s)
        await self._whole(cluster, deadline_s)

    async def recover(self, cluster: Cluster, provider: Provider, deadline_s: float) -> None:
        """Start nodes that are down, resume paused ones, wait until every replica has
        everything.
        """

        async def revive(node: str) -> None:
            status = await provider.probe(node)
            if status.paused:
                await provider.resume(node)
            elif not status.running:
                await provider.start(node)

        await together(revive(node) for node in cluster.nodes)
        await self._whole(cluster, deadline_s)

    async def connect(self, cluster: Cluster, node: str, process: int) -> ReferenceClient:
        """A connection to ``node``. Raises ``StoreError``."""
        address = cluster.client[node][CLIENT]
        return await connect(
            self._network,
            address.host,
            address.port,
            CONNECT_LIMIT_S,
            address.source,
            padding_bytes=self._options.padding_bytes,
            table_of=one_table if self._zones is None else self._table_of,
            node=node,
            elsewhere=partial(self._elsewhere, cluster, process),
        )

    async def _elsewhere(self, cluster: Cluster, process: int, node: str) -> tuple[str, Connection]:
        """A connection to another node than ``node``. Where the search begins goes by ``process``,
        so that the clients of one node do not all meet again at the next. Raises ``StoreError``.
        """
        place = cluster.nodes.index(node)
        others = (*cluster.nodes[place + 1 :], *cluster.nodes[:place])
        first = process % len(others) if others else 0
        failed: StoreError | None = None
        for other in (*others[first:], *others[:first]):
            address = cluster.client[other][CLIENT]
            limit_s, source = CONNECT_LIMIT_S, address.source
            try:
                connection = await dial(self._network, address.host, address.port, limit_s, source)
            except StoreError as error:
                failed = error
            else:
                return other, connection
        raise failed or StoreError(CONNECT_FAILED, f"there is no other node than {node}")

    def _table_of(self, key: int) -> str:
        return "" if self._zones is None else self._zones.table_of(encode_key(key)).name

    async def roles(self, cluster: Cluster) -> Roles:
        """The roles that the nodes report of themselves; of two nodes that claim one role, the one
        with the higher term or epoch has it.
        """
        roles = roles_of(await self._reports(cluster))
        return roles if self._zones is None else planned_roles(roles, self.partitions)

    async def events(self, cluster: Cluster, clock: RunClock) -> list[StoreEvent]:
        """New events of all nodes that answer, each node's in its order."""
        answers = await together(self._events(cluster, node, clock) for node in cluster.nodes)
        # Only now, without an await before the return: an answer of a call that was cancelled
        # half-way has to be asked for again.
        return [
            event
            for node, answer in zip(cluster.nodes, answers, strict=True)
            if answer is not None
            for event in self._feed.take(node, answer)
        ]

    def moments(self) -> frozenset[Moment]:
        """See ``harness.protocols.moments.TellsMoments``; a simulation sees many more."""
        return frozenset({Moment.LEADER_ELECTED, Moment.PRIMARY_GRANTED})

    async def logged_events(self, node: str, logs: Path) -> list[StoreEvent]:
        """See ``harness.protocols.cluster.LogsEvents``."""
        path = logs / LOG_FILE
        if not path.exists():
            return []
        try:
            with path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
                return self._feed.read(node, (line.rstrip("\r\n") for line in lines))
        except OSError as error:
            raise HarnessError(f"{path}: {error.strerror}") from error

    async def states(
        self, cluster: Cluster, node: str, *, whole: bool
    ) -> tuple[ReplicaState, ...] | None:
        """See ``harness.protocols.replica_states.TellsStates``."""
        limit_s = WHOLE_LIMIT_S if whole else ADMIN_LIMIT_S
        report = await self._ask(cluster, node, AskStates(whole), limit_s)
        if not isinstance(report, StateReport):
            return None
        replace = msgspec.structs.replace
        states = (_state(report, replica) for replica in report.replicas)
        return tuple(replace(s, partition=self._flat(s.partition)) for s in states)

    async def changes(self, cluster: Cluster, node: str, clock: RunClock) -> ReportedChanges | None:
        """See ``harness.protocols.changes.TellsChanges``."""
        report = await self._ask(cluster, node, self._changes.question(node))
        if not isinstance(report, ChangeReport):
            return None
        # Not the middle of question and answer: an answer that was held up would put a change
        # before it happened, and the earliest that any node reports is what counts.
        return self._changes.take(node, report, clock.now_ns())

    async def lacking(self, cluster: Cluster, limit_s: float) -> list[str]:
        """See ``harness.protocols.hardware.Replicas``."""
        loop = asyncio.get_running_loop()
        deadline_s, goals = loop.time() + limit_s, dict[int, int]()
        while True:
            reports = await self._reports(cluster)
            system_nodes = cluster.nodes if self._zones is None else self._zones.system_nodes
            lacking = missing(reports, cluster.nodes, self.partitions, goals, system_nodes)
            if not lacking or loop.time() >= deadline_s:
                return lacking
            await asyncio.sleep(POLL_S)

    async def sql(self, cluster: Cluster, node: str, statement: str, limit_s: float) -> SqlReport:
        """The store's answer to ``statement`` at ``node``, as rows or as a problem."""
        limit_ms = int(limit_s * 1000)
        # The node answers by then, unless it can't be reached.
        answer = await self._ask(
            cluster, node, AskSql(statement, limit_ms), limit_s + ADMIN_LIMIT_S
        )
        if isinstance(answer, SqlReport):
            return answer
        problem = SqlProblem(kind="NoAnswer", message=f"{node} does not answer", doubtful=True)
        return SqlReport(problem=problem)

    async def statement(
        self, cluster: Cluster, node: str, text: str, limit_s: float
    ) -> StatementAnswer:
        """See ``harness.protocols.statement_language.TakesStatements``."""
        answer = await self.sql(cluster, node, text, limit_s)
        problem = answer.problem
        return StatementAnswer(
            columns=answer.columns,
            rows=answer.rows,
            warnings=answer.warnings,
            problem="" if problem is None else f"{problem.kind}: {problem.message}",
            doubtful=problem is not None and problem.doubtful,
            retry="" if problem is None else problem.retry,
        )

    def fixed(self) -> str:
        """See ``harness.protocols.statement_language.AlteredByStatements``."""
        return "" if self._zones is not None else f"its plan names none of {', '.join(KEYS)}"

    def check_alteration(self, text: str) -> str:
        """See ``harness.protocols.statement_language.AlteredByStatements``."""
        if self._zones is None:
            return self.fixed()
        try:
            alteration(self._zones, text)
        except (SqlError, ValueError) as error:
            return str(error)
        return ""

    async def differing(self, cluster: Cluster, text: str) -> list[str]:
        """See ``harness.protocols.statement_language.AlteredByStatements``."""
        if self._zones is None:
            return [self.fixed()]
        views = await self._views(cluster, ("PARTITION_STATES", "ZONES", "TABLES"))
        return differing(self._zones, alteration(self._zones, text), views)

    def fixed_members(self) -> str:
        """See ``harness.protocols.cluster_membership.ChangesMembers``."""
        return self.fixed()

    def keeps_members(self) -> str:
        """See ``harness.protocols.cluster_membership.ChangesMembers``."""
        return self.fixed() if self._zones is None else keeping(self._zones)

    def announcing(
        self, node: str, cluster: Cluster, attributes: Mapping[str, AttributeValue] | None
    ) -> Program:
        """See ``harness.protocols.cluster_membership.ChangesMembers``."""
        return self._program(node, cluster, None if attributes is None else dict(attributes))

    def announcement(self, node: str, attributes: Mapping[str, AttributeValue] | None) -> str:
        """See ``harness.protocols.cluster_membership.ChangesMembers``."""
        if self._zones is None:
            return ""
        given = None if attributes is None else dict(attributes)
        return attributes_text(self._zones.of(node, given).attributes)

    async def announced(self, cluster: Cluster) -> dict[str, str]:
        """See ``harness.protocols.cluster_membership.ChangesMembers``."""
        views = await self._views(cluster, ("LOGICAL_TOPOLOGY",))
        return announced(views["LOGICAL_TOPOLOGY"])

    async def unsettled(self, cluster: Cluster, nodes: Sequence[str]) -> list[str]:
        """See ``harness.protocols.cluster_membership.ChangesMembers``."""
        if self._zones is None:
            return []
        return unsettled(self._zones, await self._views(cluster, tuple(VIEWS)), nodes)

    async def unplaced(self, cluster: Cluster) -> list[str]:
        """See ``harness.protocols.statement_language.AlteredByStatements``."""
        if self._zones is None:
            return []
        return unplaced(self._zones, await self._views(cluster, tuple(VIEWS)))

    async def _views(self, cluster: Cluster, names: Sequence[str]) -> dict[str, Table]:
        """The system views ``names``, asked for in this order, of the first node that tells
        all.
        """
        problems = []
        for node in cluster.nodes:
            found: dict[str, Table] = {}
            for name in names:
                answer = await self.sql(cluster, node, VIEWS[name], VIEW_LIMIT_S)
                if answer.problem is not None:
                    problems.append(f"{node}: {answer.problem.message}")
                    break
                found[name] = Table(answer.columns, answer.rows)
            else:
                return found
        raise HarnessError(f"no node tells its system views: {'; '.join(problems)}")

    async def _define(self, cluster: Cluster, ddl: Sequence[str], deadline_s: float) -> None:
        """Run ``ddl``, once every node has joined: zones begin with the nodes that are there."""
        loop, node = asyncio.get_running_loop(), cluster.nodes[0]
        while True:
            joined = (await self.sql(cluster, node, JOINED, STATEMENT_LIMIT_S)).rows
            missing_ones = [name for name in cluster.nodes if (name,) not in joined]
            if not missing_ones:
                break
            if loop.time() >= deadline_s:
                raise HarnessError(f"not in the logical topology: {', '.join(missing_ones)}")
            await asyncio.sleep(POLL_S)
        for statement in ddl:
            await self._carried_out(cluster, node, statement, deadline_s)

    async def _carried_out(
        self, cluster: Cluster, node: str, statement: str, deadline_s: float
    ) -> None:
        """Have ``statement`` carried out, asked again where its answer was lost. Raises
        ``HarnessError``.
        """
        loop, doubted = asyncio.get_running_loop(), False
        while True:
            problem = (await self.sql(cluster, node, statement, STATEMENT_LIMIT_S)).problem
            if problem is None or (doubted and problem.kind in DONE_BEFORE):
                return
            if problem.kind in REFUSALS or loop.time() >= deadline_s:
                raise HarnessError(f"system.ddl: {statement!r}: {problem.message}")
            doubted = doubted or problem.doubtful
            await asyncio.sleep(POLL_S)

    async def _whole(self, cluster: Cluster, deadline_s: float) -> None:
        """Return when nothing is missing; raise ``HarnessError`` with what is missing at the
        deadline.
        """
        limit_s = deadline_s - asyncio.get_running_loop().time()
        if lacking := await self.lacking(cluster, limit_s):
            raise HarnessError(f"the reference store is not whole: {'; '.join(lacking)}")

    async def _reports(self, cluster: Cluster) -> dict[str, NodeReport]:
        """The report of each node that answers."""

        async def one(node: str) -> AdminBody | None:
            return await self._ask(cluster, node, AskStatus())

        answers = await together(one(node) for node in cluster.nodes)
        return {
            node: answer if self._zones is None else renumbered(answer, self._zones.flat)
            for node, answer in zip(cluster.nodes, answers, strict=True)
            if isinstance(answer, NodeReport)
        }

    def _flat(self, number: int | None) -> int | None:
        """The number in the run of the store's partition ``number``; ``None`` is metastorage."""
        return number if self._zones is None else self._zones.flat(number)

    async def _events(self, cluster: Cluster, node: str, clock: RunClock) -> Answer | None:
        """The events that the node has not reported yet."""
        asked_ns = clock.now_ns()
        batch = await self._ask(cluster, node, self._feed.question(node))
        return Answer(batch, asked_ns, clock.now_ns()) if isinstance(batch, EventBatch) else None

    async def _ask(
        self,
        cluster: Cluster,
        node: str,
        question: AskStatus | AskEvents | AskStates | AskSql | AskChanges,
        limit_s: float = ADMIN_LIMIT_S,
    ) -> AdminBody | None:
        """The node's answer, or ``None`` where there is none in time."""
        address = cluster.client[node][CLIENT]
        try:
            return await ask(
                self._network, address.host, address.port, question, limit_s, address.source
            )
        # No answer is a usual state here: nodes are down or cut off in most drills.
        except (ConnectionLost, BadMessage, TimeoutError):
            return None


def _state(report: StateReport, replica: ReplicaReport) -> ReplicaState:
    told = msgspec.structs.asdict(replica)
    told["recovered"] = RecoveredState(**msgspec.structs.asdict(replica.recovered))
    told["log"] = tuple(LogMark(mark.index, mark.term, mark.digest) for mark in replica.log)
    return ReplicaState(node=report.node, life=told.pop("member"), boot=report.boot, **told)


def source_hash(directory: Path) -> str:
    """SHA-256 over the names and contents of the Python files below ``directory``."""
    digest = hashlib.sha256()
    for path in sorted(directory.rglob("*.py")):
        content = path.read_bytes()
        # Names and lengths, too: bytes that move from one file to another change the hash.
        digest.update(f"{path.relative_to(directory)} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def _endpoint(address: Address) -> Endpoint:
    return Endpoint(host=address.host, port=address.port)
