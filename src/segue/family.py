"""
Sub-agents: sessions that a session has made (``Session.child``), and what is done with all of them together.

A child has its own log, run and config, and can be resumed alone. An entry of its parent names it (ref
``child``), and it names its parent. Forks are no family: they share a past, children serve a present. But the
forks of the children that ``fork_family`` makes are the family of the fork that it makes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from . import formats
from .edits import Retracts
from .errors import Exists, Invalid, NotFound
from .store import Hollow

FAMILY_MAX = 10_000
"""Most members of a family that are looked at."""


class ErasedFamily(NamedTuple):
    """How many sessions of a family were erased, and how many entries in them."""

    sessions: int
    entries: int


def family(scope: Any, session: Any) -> Iterator[Any]:
    """A session, its sub-agents, and theirs, each once; erased ones are left out."""
    waiting, seen = [session], {session.id}
    while waiting and len(seen) <= FAMILY_MAX:
        one = waiting.pop(0)
        yield one
        for child in _children(one):
            if child not in seen:
                seen.add(child)
                try:
                    waiting.append(scope.open(child))
                except NotFound:
                    continue


def _children(session: Any) -> Iterator[str]:
    """Ids of its children. What a fork shares are its parent's, and its own are their forks, if there are any."""
    base = session.refresh().base
    for hit in session.by_ref("child"):
        value = hit.entry.json()
        if value is not None:
            yield value["session"] if hit.entry.seq > base else _fork_id(session.id, value["session"])


def _fork_id(fork: str, child: str) -> str:
    """Id of a child's fork for a fork of its parent: by it the one is found from the other."""
    return hashlib.sha256(f"fork:{fork}/{child}".encode()).hexdigest()[:32]


def keep_result(child: Any) -> int:
    """
    Make a sub-agent ephemeral: of its log only the last answer stays, the content of all else is erased for good.

    Seqs, ids and digests stay, and so do its tokens and the links to sub-agents of its own. What a fork shares is
    its parent's and stays; so does what the fork took back of that.

    Returns:
        How many entries lost their content.

    Raises:
        Invalid: It has no answer yet; one that was taken back is none.
    """
    rules, base = formats.rules(child.info.format), child.refresh().base
    retracts = Retracts(child.by_ref("retract", reverse=True))
    kept = 0
    for entry in child.read(kinds=("message",)):
        if entry.body is not None and entry.origin == "model" and not retracts.by(entry):
            kept = kept if rules and rules.calls(entry.json()) else entry.seq
    if not kept:
        raise Invalid(f"session {child.id!r} has no answer to keep; let it end first")
    needed = ("segue.child", "retract", "mask") if base else ("segue.child",)
    rest = [e.seq for e in child.read(after=base) if e.seq != kept and e.body is not None and e.kind not in needed]
    # Not by ``child.hollow``: what a cut or a retraction hides goes with it, in one step.
    return int(child.log.engine.do(Hollow(child.log.scope, child.id, tuple(rest)))) if rest else 0


def erase_family(scope: Any, session: Any, *, children: Literal["erase", "keep"] = "erase") -> ErasedFamily:
    """
    Erase a session together with its sub-agents, the youngest first, so that a crash leaves none without its parent.

    Args:
        scope: Their scope.
        session: The eldest.
        children: ``keep`` leaves the sub-agents: they go on as sessions of their own.
    """
    members = list(family(scope, session)) if children == "erase" else [session]
    entries = 0
    for one in reversed(members):
        try:
            entries += one.erase().entries
        except NotFound:
            continue
    return ErasedFamily(len(members), entries)


def fork_family(scope: Any, session: Any, at: int | None = None, **options: Any) -> tuple[Any, dict[str, Any]]:
    """
    Fork a session, and each sub-agent that it had made up to there; the originals never change.

    Args:
        scope: Their scope.
        session: The eldest.
        at: Up to where; None: the head. The sub-agents are forked as they stand now; erased ones are left out.
        options: As for ``Session.fork``; with ``id``, a call after a crash makes what is missing.

    Returns:
        The fork, and the forks of the children by the id of the child. They are the fork's family.
    """
    made = session.fork(at, **options)
    base = session.refresh().base
    forks: dict[str, Any] = {}
    for hit in made.by_ref("child", upto=made.info.base):
        value = hit.entry.json()
        if value is None:
            continue
        own = _fork_id(session.id, value["session"]) if hit.entry.seq <= base else value["session"]
        try:
            child = _opened(scope, own) or scope.open(value["session"])
            id = _fork_id(made.id, value["session"])
            forks[child.id] = _opened(scope, id) or child.fork(id=id, listed=False)
        except (NotFound, Exists):  # erased: the child, or its fork since
            continue
    return made, forks


def _opened(scope: Any, id: str) -> Any:
    try:
        return scope.open(id)
    except NotFound:
        return None
