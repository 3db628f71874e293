"""A simulated store: one history from one random stream, at a level of isolation, with bugs.

Clients are sessions on one axis of small integers, so that ties are frequent. First the schedule is
drawn (who invokes what, when its steps happen, how it ends), then it is played against the store in
the order of time; at a tie invocations come first and completions last, as histories are judged.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import attrs
from gallery import history
from oracle import Op, Txn

State = dict[int, tuple[int, ...]]


@attrs.frozen(kw_only=True)
class Level:
    """What a store promises, and which of its promises it breaks how often (0 to 1).

    ``reads``: ``atomic`` (the whole transaction at one instant), ``snapshot`` (as of its begin),
    ``latest`` (what is committed now), ``dirty`` (what anyone wrote). ``conflicts``: whether the
    second of two concurrent writers of a key fails. ``lag``: how many commits a transaction without
    appends may be behind; ``sessions``: it never goes behind what its own session did. ``puts``: an
    append writes back the list that was read.

    The bugs: ``lose`` an acknowledged commit, apply a ``ghost`` of a failed one, apply ``twice``,
    in two ``parts``, read ``garbage``, read lists ``turned``, read one's own ``future``.
    """

    reads: str = "atomic"
    conflicts: bool = False
    lag: int = 0
    sessions: bool = False
    puts: bool = False
    lose: float = 0
    ghost: float = 0
    twice: float = 0
    parts: float = 0
    garbage: float = 0
    turned: float = 0
    future: float = 0


@attrs.define(kw_only=True)
class _Session:
    """A transaction as it was scheduled, and what it did so far."""

    process: int
    slot: int
    invoke: int
    steps: list[int]
    complete: int
    ops: list[Op]
    type: str
    applied: bool
    tells_reads: bool
    snapshot: int = 0
    begun: bool = False
    results: list[tuple[int, ...]] = attrs.Factory(list)
    buffer: list[tuple[int, int]] = attrs.Factory(list)
    held: list[tuple[int, int]] = attrs.Factory(list)


def simulate(
    stream: random.Random, level: Level, *, size: int, slots: int, keys: int
) -> tuple[Txn, ...]:
    """A history of ``size`` transactions, the last ``keys`` of which read everything at the end.

    What failed had no effect and what crashed may have had one, unless the level says otherwise.
    """
    sessions = _schedule(stream, size - keys, slots, keys)
    store = _Store(stream, level)
    for act in _acts(sessions, store):
        act()
    txns = [_recorded(session) for session in sessions]
    end = max(txn.complete for txn in txns)
    for key in range(keys):
        elements = store.states[-1].get(key, ())
        at = end + 3 * key + 1
        txns.append(
            Txn(
                index=-1,
                process=1000 + key,
                type="ok",
                invoke=at,
                complete=at + 1,
                ops=(("r", key, elements),),
            )
        )
    return history(txns)


def _schedule(stream: random.Random, size: int, slots: int, keys: int) -> list[_Session]:
    idle = [stream.randint(0, 3) for _ in range(slots)]
    process = list(range(slots))
    counters = dict.fromkeys(range(keys), 0)
    sessions: list[_Session] = []
    for _ in range(size):
        slot = min(range(slots), key=lambda place: (idle[place], place))
        ops = _ops(stream, counters)
        invoke = idle[slot]
        complete = invoke + stream.randint(1, 8)
        kind = stream.choices(("ok", "fail", "info"), (80, 10, 10))[0]
        sessions.append(
            _Session(
                process=process[slot],
                slot=slot,
                invoke=invoke,
                steps=sorted(stream.randint(invoke, complete) for _ in ops),
                complete=complete,
                ops=ops,
                type=kind,
                applied=kind == "ok" or (kind == "info" and stream.random() < 0.5),
                tells_reads=stream.random() < 0.4,
            )
        )
        idle[slot] = complete + stream.randint(1, 3)
        process[slot] += slots if kind == "info" else 0
    return sessions


def _ops(stream: random.Random, counters: dict[int, int]) -> list[Op]:
    ops: list[Op] = []
    for _ in range(stream.randint(1, 4)):
        key = stream.randrange(len(counters))
        if stream.random() < 0.5:
            counters[key] += 1
            ops.append(("append", key, counters[key]))
        else:
            ops.append(("r", key, None))
    return ops


def _acts(sessions: list[_Session], store: _Store) -> Iterator[Callable[[], None]]:
    """What happens, in order: steps, the commit with the last of them, and completions."""
    events: list[tuple[int, int, int, int, Callable[[], None]]] = []
    for place, session in enumerate(sessions):
        if store.level.reads == "atomic":
            session.steps = [session.steps[-1]] * len(session.steps)
        last = len(session.steps) - 1
        for number, at in enumerate(session.steps):
            events.append((at, 0, place, number, _step(store, session, number)))
        events.append((session.steps[last], 0, place, last + 1, _commit(store, session)))
        events.append((session.complete, 1, place, 0, _finish(store, session)))
    events.sort(key=lambda event: event[:4])
    return iter([event[4] for event in events])


def _step(store: _Store, session: _Session, number: int) -> Callable[[], None]:
    return lambda: store.step(session, number)


def _commit(store: _Store, session: _Session) -> Callable[[], None]:
    return lambda: store.commit(session)


def _finish(store: _Store, session: _Session) -> Callable[[], None]:
    return lambda: store.finish(session)


class _Store:
    """All states that were ever committed, oldest first."""

    def __init__(self, stream: random.Random, level: Level) -> None:
        self.level = level
        self.states: list[State] = [{}]
        self._stream = stream
        self._floor: dict[int, int] = {}  # by slot: the state that its session has seen

    def step(self, session: _Session, number: int) -> None:
        """Do one micro-operation."""
        if not session.begun:
            self._begin(session)
        f, key, value = session.ops[number]
        if f == "append" and isinstance(value, int):
            if self.level.reads == "dirty":
                self._push([(key, value)])
            session.buffer.append((key, value))
            session.results.append(())
        else:
            session.results.append(self._read(session, number, key))

    def commit(self, session: _Session) -> None:
        """Make its appends visible, or not."""
        if self.level.reads == "dirty":
            if not session.applied and not self._happens(self.level.ghost):
                self._remove(session.buffer)
            return
        if self._conflicting(session):
            session.type, session.applied = "fail", False
        if session.type == "fail":
            applied = bool(session.buffer) and self._happens(self.level.ghost)
        else:
            applied = session.applied and not self._happens(self.level.lose)
        if not applied:
            return
        parts = 1 if self._happens(self.level.parts) else len(session.buffer)
        session.held = session.buffer[parts:]
        again = session.buffer if self._happens(self.level.twice) else []
        self._apply(session, session.buffer[:parts] + again)

    def finish(self, session: _Session) -> None:
        """Its answer leaves: what was held back follows now."""
        self._apply(session, session.held)
        self._floor[session.slot] = max(self._floor.get(session.slot, 0), session.snapshot)
        if session.buffer:
            self._floor[session.slot] = len(self.states) - 1

    def _begin(self, session: _Session) -> None:
        session.begun = True
        session.snapshot = len(self.states) - 1
        if not any(f == "append" for f, _, _ in session.ops):
            oldest = max(0, session.snapshot - self.level.lag)
            if self.level.sessions:
                oldest = max(oldest, self._floor.get(session.slot, 0))
            session.snapshot = self._stream.randint(oldest, session.snapshot)

    def _read(self, session: _Session, number: int, key: int) -> tuple[int, ...]:
        latest = self.level.reads in ("latest", "dirty")
        elements = self.states[-1 if latest else session.snapshot].get(key, ())
        if self.level.reads != "dirty":
            elements += tuple(element for of, element in session.buffer if of == key)
        if self._happens(self.level.garbage):
            elements += (900 + self._stream.randrange(100),)
        if len(elements) > 1 and self._happens(self.level.turned):
            elements = (*elements[:-2], elements[-1], elements[-2])
        later = [op[2] for op in session.ops[number:] if op[:2] == ("append", key)]
        if later and isinstance(later[0], int) and self._happens(self.level.future):
            elements += (later[0],)
        return elements

    def _apply(self, session: _Session, appends: list[tuple[int, int]]) -> None:
        if not self.level.puts:
            self._push(appends)
            return
        base = self.states[session.snapshot]
        put = {key: base.get(key, ()) for key, _ in appends}
        self.states.append(self.states[-1] | put)
        self._push(appends)

    def _push(self, appends: list[tuple[int, int]]) -> None:
        if appends:
            state = dict(self.states[-1])
            for key, element in appends:
                state[key] = (*state.get(key, ()), element)
            self.states.append(state)

    def _remove(self, appends: list[tuple[int, int]]) -> None:
        self.states.append(
            {
                key: tuple(element for element in elements if (key, element) not in appends)
                for key, elements in self.states[-1].items()
            }
        )

    def _conflicting(self, session: _Session) -> bool:
        if not self.level.conflicts:
            return False
        then, now = self.states[session.snapshot], self.states[-1]
        return any(then.get(key, ()) != now.get(key, ()) for key, _ in session.buffer)

    def _happens(self, chance: float) -> bool:
        return chance > 0 and self._stream.random() < chance


def _recorded(session: _Session) -> Txn:
    ops = tuple(
        op if op[0] == "append" else ("r", op[1], seen if _told(session) else None)
        for op, seen in zip(session.ops, session.results, strict=True)
    )
    return Txn(
        index=-1,
        process=session.process,
        type=session.type,
        invoke=session.invoke,
        complete=session.complete,
        ops=ops,
    )


def _told(session: _Session) -> bool:
    """What an aborted transaction read of its own is evidence of nothing, so it is not told."""
    if session.type == "ok":
        return True
    evidence = session.applied if session.type == "info" else not session.buffer
    return evidence and session.tells_reads
