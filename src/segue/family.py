"""
Sub-agents: sessions that a session has made (``Session.child``), and what is done with all of them together.

A child has its own log, run and config, and can be resumed alone. An entry of its parent names it (ref
``child``), and it names its parent. Forks are no family: they share a past, children serve a present.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from . import formats
from .errors import Invalid, NotFound

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
        for hit in one.by_ref("child", after=one.refresh().base):  # what a fork shares are its parent's children
            value = hit.entry.json()
            if value is not None and value["session"] not in seen:
                seen.add(value["session"])
                try:
                    waiting.append(scope.open(value["session"]))
                except NotFound:
                    continue


def keep_result(child: Any) -> int:
    """
    Make a sub-agent ephemeral: of its log only the last answer stays, the content of all else is erased for good.

    Seqs, ids and digests stay, and so do its tokens.

    Returns:
        How many entries lost their content.

    Raises:
        Invalid: It has no answer yet.
    """
    rules = formats.rules(child.info.format)
    messages = child.read(kinds=("message",))
    said = [e for e in messages if e.body is not None and e.origin == "model" and not (rules and rules.calls(e.json()))]
    if not said:
        raise Invalid(f"session {child.id!r} has no answer to keep; let it end first")
    rest = [entry.seq for entry in child.read() if entry.seq != said[-1].seq and entry.body is not None]
    return int(child.hollow(*rest)) if rest else 0


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

    Returns:
        The fork, and the forks of the children by the id of the child (each as it stands now).
    """
    made = session.fork(at, **options)
    forks: dict[str, Any] = {}
    for hit in made.by_ref("child"):
        value = hit.entry.json()
        if value is None:
            continue
        try:
            forks[value["session"]] = scope.open(value["session"]).fork(listed=False)
        except NotFound:
            continue
    return made, forks
