"""The commands that change a session: fork, title, tag, pin, end, reopen, archive, restore, rm."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from itertools import islice

import segue
from segue.errors import Invalid
from segue.model import SessionInfo

from . import machine
from .address import Desk, given, short_id
from .outcome import DONE, FINDING
from .reading import origin_of
from .screen import Screen
from .text import one_line, plural

FORKS_MAX = 1_000
"""How many forks ``rm`` counts before it asks."""

SESSION = "id, part of an id, key:KEY or latest"


def one_argument(parser: ArgumentParser) -> None:
    parser.add_argument("session", type=given, help=SESSION)


def some_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("session", nargs="+", type=given, help=f"{SESSION}; several may be given")


def _tell(session: segue.Session, done: str, screen: Screen) -> None:
    screen.emit(machine.session(session.info))
    title = one_line(session.info.title)
    screen.line((short_id(session.id), "id"), f"  {done}", f"  {title}" if title else "")


# fork


def fork_arguments(parser: ArgumentParser) -> None:
    one_argument(parser)
    parser.add_argument("--at", type=int, metavar="SEQ", help="the last entry to share (default: all of them)")
    parser.add_argument("--title", help="the fork's title (default: the parent's)")


def fork(desk: Desk, args: Namespace, screen: Screen) -> int:
    """Make a session that shares the beginning of another and goes on by itself."""
    options = {} if args.title is None else {"title": args.title}
    parent = desk.find(args.session)
    if args.at is not None and not 0 <= args.at <= parent.info.head:
        raise Invalid(
            f"--at must lie between 0 and the last entry, which is {parent.info.head}, not {args.at}", where="at"
        )
    made = parent.fork(args.at, **options)
    _tell(made, origin_of(made.info), screen)
    return DONE


# title, tag, pin


def title_arguments(parser: ArgumentParser) -> None:
    one_argument(parser)
    parser.add_argument("title", help="at most 500 characters; an empty one takes the title away")


def title(desk: Desk, args: Namespace, screen: Screen) -> int:
    """Set the title."""
    session = desk.find(args.session)
    session.rename(args.title)
    _tell(session, "title set" if session.info.title else "title removed", screen)
    return DONE


def tag_arguments(parser: ArgumentParser) -> None:
    one_argument(parser)
    parser.add_argument("tag", nargs="*", help="tags to add")
    parser.add_argument(
        "--remove", action="append", default=[], metavar="TAG", help="take a tag away (may be repeated)"
    )


def tag(desk: Desk, args: Namespace, screen: Screen) -> int:
    """Add and remove tags."""
    session = desk.find(args.session)
    if args.tag or args.remove:
        session.tag(*args.tag, remove=args.remove)
    _tell(session, f"tags: {', '.join(session.info.tags) or 'none'}", screen)
    return DONE


def pin_arguments(parser: ArgumentParser) -> None:
    some_arguments(parser)
    parser.add_argument("--off", action="store_true", help="unpin")


def pin(desk: Desk, args: Namespace, screen: Screen) -> int:
    """Pin a session, so that no sweep touches it, or unpin it."""
    return _all(
        desk, args, screen, lambda one: one.unpin() if args.off else one.pin(), "unpinned" if args.off else "pinned"
    )


# end, reopen, archive, restore


def end(desk: Desk, args: Namespace, screen: Screen) -> int:
    """Mark sessions as completed."""
    return _all(desk, args, screen, lambda one: one.end(), "completed")


def reopen(desk: Desk, args: Namespace, screen: Screen) -> int:
    """Make completed sessions idle again."""
    return _all(desk, args, screen, lambda one: one.reopen(), "reopened, {status}")


def archive(desk: Desk, args: Namespace, screen: Screen) -> int:
    """Put sessions away: hidden, kept, refusing appends."""
    return _all(desk, args, screen, lambda one: one.archive(), "archived")


def restore(desk: Desk, args: Namespace, screen: Screen) -> int:
    """Bring archived or expired sessions back."""
    for session in [desk.find(one, status="archived") for one in args.session]:
        due = session.info.due_at
        if session.info.state == "archived" or (due is not None and due <= desk.now):
            session.restore()
            _tell(session, "restored", screen)
        else:
            _tell(session, "is not archived: nothing to restore", screen)
    return DONE


def _all(desk: Desk, args: Namespace, screen: Screen, change: Callable[[segue.Session], object], done: str) -> int:
    """Change each session; all are looked up first, so that a mistyped one leaves nothing half done."""
    for session in [desk.find(one) for one in args.session]:
        change(session)
        _tell(session, done.format(status=session.info.status), screen)
    return DONE


# rm


def rm_arguments(parser: ArgumentParser) -> None:
    some_arguments(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask")


def rm(desk: Desk, args: Namespace, screen: Screen) -> int:
    """Erase sessions for good."""
    sessions = {session.id: session for session in (desk.find(one) for one in args.session)}
    if not args.yes and not _agreed(desk, list(sessions.values()), screen):
        screen.note("nothing was erased")
        return FINDING
    for session in sessions.values():
        erased = session.erase()
        screen.emit({"id": session.id, "erased": erased.entries, "shared": erased.shared})
        kept = f", {plural(erased.shared, 'entry', 'entries')} live on in forks" if erased.shared else ""
        kept += "" if session.info.lease is None else "; a run was active on it"
        screen.line((short_id(session.id), "id"), f"  erased: {plural(erased.entries, 'entry', 'entries')}{kept}")
    return DONE


def _agreed(desk: Desk, sessions: list[segue.Session], screen: Screen) -> bool:
    if not sys.stdin.isatty():
        raise Invalid("rm erases for good and there is nobody to ask; say --yes", where="--yes")
    for session in sessions:
        forks = sum(1 for _ in islice(desk.sessions(parent=session.id), FORKS_MAX))
        title = one_line(session.info.title) or "(no title)"
        screen.note(f"{short_id(session.id)}  {title}  ({_about(session.info, forks)})")
    sys.stderr.write(f"erase {plural(len(sessions), 'session')} for good? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _about(info: SessionInfo, forks: int) -> str:
    """What there is to know before a session is erased."""
    facts = [
        plural(info.head, "entry", "entries"),
        f"{info.base:,} of them its parent's, which stay there" if info.base else "",
        f"{plural(forks, 'session')} made from it" if forks else "",
        "" if info.lease is None else f"a run is {'paused' if info.lease.state == 'paused' else 'active'} on it",
    ]
    return ", ".join(fact for fact in facts if fact)
