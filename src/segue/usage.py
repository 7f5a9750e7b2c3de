"""
Token accounting: what model calls used, by entry, run, session, family, scope and day, and what it cost.

Each model call is counted once: its usage stands on one entry, the last of its answer. A fork counts what it
added, never what it shares; a retry stores nothing and counts nothing; a stream's counts overwrite each other;
an import puts the usage of several lines of one message on one of them (``once``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, tzinfo
from typing import Any, NamedTuple

from .errors import Invalid
from .family import family
from .model import Entry, SessionInfo, Usage

MILLION = 1_000_000


class Line(NamedTuple):
    """One model call's tokens: when it was stored, in which session and run, by which model (empty: not known)."""

    session: str
    entry: Entry
    model: str

    @property
    def usage(self) -> Usage:
        """Its tokens."""
        return self.entry.usage or Usage()


class Sums(dict[Any, Usage]):
    """Usage by key; a key that is not there has none."""

    def __missing__(self, key: Any) -> Usage:
        return Usage()

    @property
    def total(self) -> Usage:
        """All of them together."""
        return add(self.values())


def add(usages: Iterable[Usage]) -> Usage:
    """The sum."""
    total = Usage()
    for one in usages:
        total += one
    return total


def lines(session: Any) -> Iterator[Line]:
    """Each counted entry of a session that is its own: what a fork shares with its parent is the parent's."""
    for entry in session.history(after=session.refresh().base):
        if entry.usage is not None:
            model = next((ref[6:] for ref in entry.refs if ref.startswith("model:")), "")
            yield Line(session.id, entry, model)


def by_run(session: Any) -> Sums:
    """Tokens of each run of a session; under None what was appended without one."""
    return _sum((line.entry.run, line.usage) for line in lines(session))


def by_model(sessions: Iterable[Any]) -> Sums:
    """Tokens of each model."""
    return _sum((line.model, line.usage) for one in sessions for line in lines(one))


def by_day(sessions: Iterable[Any], *, zone: tzinfo = UTC) -> Sums:
    """Tokens of each calendar day in a time zone: of the day when the call is said to have been, else was stored."""

    def day(entry: Entry) -> date:
        return (entry.occurred_at or entry.created_at).astimezone(zone).date()

    return _sum((day(line.entry), line.usage) for one in sessions for line in lines(one))


def of_family(scope: Any, session: Any) -> Usage:
    """A session's tokens and its sub-agents'."""
    return add(one.refresh().usage for one in family(scope, session))


def of_scope(scope: Any) -> Usage:
    """The tokens of all sessions of a scope, archived ones and sub-agents included."""
    states = ("running", "idle", "paused", "completed", "archived")
    infos: Iterable[SessionInfo] = scope.iterate(status=states, unlisted=True)
    return add(info.usage for info in infos)


def _sum(pairs: Iterable[tuple[Any, Usage]]) -> Sums:
    sums = Sums()
    for key, usage in pairs:
        sums[key] = sums[key] + usage
    return sums


def once(rows: Iterable[tuple[str, Usage | None]]) -> list[Usage | None]:
    """
    Usage for an import: of several lines of one message, the last carries the highest counts, the others none.

    Args:
        rows: The message's id (empty: a line of its own) and the counts of each line, in order.
    """
    given = list(rows)
    last: dict[str, int] = {}
    highest: dict[str, Usage] = {}
    for n, (id, usage) in enumerate(given):
        if id and usage is not None:
            last[id] = n
            before = highest.get(id, Usage())
            highest[id] = Usage(*map(max, before, usage))
    return [(highest[id] if last.get(id) == n else None) if id else usage for n, (id, usage) in enumerate(given)]


@dataclass(frozen=True)
class Price:
    """
    What a million tokens cost, in any currency.

    Attributes:
        input: Of input that no cache had.
        output: Of output, reasoning included.
        cache_read: Of input that the cache had; None: as input.
        cache_write: Of input written to the cache; None: as input.
        cache_write_long: Of input written for an hour or more; None: as cache_write.
    """

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None
    cache_write_long: float | None = None

    def of(self, usage: Usage) -> float:
        """What these tokens cost."""
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        long = write if self.cache_write_long is None else self.cache_write_long
        plain = usage.input - usage.cache_read - usage.cache_write
        short = usage.cache_write - usage.cache_write_long
        parts = (plain * self.input, usage.cache_read * read, short * write, usage.cache_write_long * long)
        return (sum(parts) + usage.output * self.output) / MILLION


@dataclass(frozen=True)
class Prices:
    """
    Prices by model. Segue ships none: they change, and a wrong one is worse than none. Give your own table.

    Attributes:
        table: Price of each model; a name that ends in ``*`` fits all that begin so, the longest first.
    """

    table: Mapping[str, Price] = field(default_factory=dict)

    def find(self, model: str) -> Price:
        """
        The price of a model.

        Raises:
            Invalid: The table has none; add it.
        """
        if model in self.table:
            return self.table[model]
        fits = [name for name in self.table if name.endswith("*") and model.startswith(name[:-1])]
        if not fits:
            raise Invalid(f"no price of the model {model!r}; add it to the table", where="prices")
        return self.table[max(fits, key=len)]

    def of(self, sessions: Iterable[Any]) -> float:
        """What all model calls of these sessions cost."""
        return sum(self.find(model).of(usage) for model, usage in by_model(sessions).items())
