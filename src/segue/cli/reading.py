"""The commands that read: ls, show, resume."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple

import segue
from segue.edits import Retracts, hits
from segue.errors import Corrupt, Invalid, ViewInvalid
from segue.model import KINDS, Entry, SessionInfo

from . import address, machine
from .address import Desk, given, short_id
from .conversation import Conversation
from .outcome import DONE, FINDING
from .screen import Screen, Span
from .text import ago, clock, cut, joined, moment, one_line, pad, plural, short, width

LIMIT = 20
"""How many sessions ``ls`` shows to a person."""

OTHERS_MAX = 5
"""How many other owners are named to somebody who has no sessions."""

CALLS_MAX = 4
"""Among how many entries the call of a result is looked for."""

NARROW = 100
"""Below this width of the screen the heads of the numbers are short, so that titles have room."""

ROOM_MIN = 16
"""With less room for titles, or less than tells a fork from its parent, columns are left out."""

TITLE_MIN = 8
"""Cells of a title that tags and origin leave to it."""

STATUS_STYLES = {"running": "good", "idle": "", "paused": "warn", "completed": "dim", "archived": "dim"}


# ls


def ls_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--status",
        action="append",
        choices=address.STATUSES,
        metavar="STATUS",
        help=f"only these: {', '.join(address.STATUSES[:-1])} or {address.STATUSES[-1]} (may be repeated)",
    )
    parser.add_argument("--tag", type=given, help="only sessions with this tag")
    parser.add_argument("--key", metavar="PREFIX", help="only sessions whose own key begins so")
    parser.add_argument(
        "--forks-of", type=given, metavar="SESSION", help="only forks and sub-agents' sessions of this one"
    )
    parser.add_argument(
        "--since", metavar="TIME", help="only those active since: 7d (ago), 2026-08-28, 2026-08-28T15:04"
    )
    parser.add_argument("--until", metavar="TIME", help="only those last active until")
    parser.add_argument("--all", action="store_true", help="archived and unlisted (sub-agents') sessions too")
    parser.add_argument("--limit", type=int, metavar="N", help=f"at most N (default: {LIMIT}; with --json all)")
    parser.add_argument("--full-ids", action="store_true", help="show whole ids")


def ls(desk: Desk, args: Namespace, screen: Screen) -> int:
    """List the owner's sessions, last active first."""
    limit = args.limit if args.limit is not None or screen.is_json else LIMIT
    if limit is not None and limit < 1:
        raise Invalid(f"--limit must be 1 or more, not {limit}", where="limit")
    found = desk.scope.iterate(**_filters(desk, args))
    if screen.is_json:
        for info in islice(found, limit):
            screen.emit(machine.session(info))
        return DONE
    shown = list(islice(found, limit))
    if not shown:
        _nothing(desk, args, screen)
        return DONE
    _table(desk, shown, screen, full_ids=args.full_ids)
    if next(found, None) is not None:
        screen.note(f"more sessions than these {len(shown)}; --limit {len(shown) * 5} shows more")
    return DONE


def _filters(desk: Desk, args: Namespace) -> dict[str, Any]:
    filters: dict[str, Any] = {
        "status": args.status or (address.STATUSES if args.all else None),
        "unlisted": args.all or args.forks_of is not None,
        "tag": args.tag,
        "key_prefix": args.key,
        "parent": None if args.forks_of is None else desk.find(args.forks_of).id,
        "since": None if args.since is None else moment(args.since, desk.now),
        "until": None if args.until is None else moment(args.until, desk.now),
    }
    return {name: value for name, value in filters.items() if value is not None}


def _nothing(desk: Desk, args: Namespace, screen: Screen) -> None:
    owner = desk.scope.key
    filtered = any((args.status, args.tag, args.key, args.forks_of, args.since, args.until))
    screen.line(
        f"no sessions of {owner.tenant}/{owner.user}{' that fit' if filtered else ''} in {address.shown(desk.url)}"
    )
    others = list(islice((key for key in desk.db.scopes() if key != owner), OTHERS_MAX + 1))
    if others and not filtered:
        listed = ", ".join(f"--tenant {key.tenant} --user {key.user}" for key in others[:OTHERS_MAX])
        screen.line((f"others have: {listed}{' …' if len(others) > OTHERS_MAX else ''}", "dim"))


class _Row(NamedTuple):
    id: str
    status: str
    active: str
    entries: str
    tokens: str


def _row(info: SessionInfo, desk: Desk, *, full_ids: bool, has_clock: bool) -> _Row:
    return _Row(
        info.id if full_ids else short_id(info.id),
        info.status,
        ago(info.active_at, desk.now) + (f" {clock(info.active_at, desk.now)}" if has_clock else ""),
        f"{info.head:,}",
        short(info.usage.input + info.usage.output) if any(info.usage) else "–",
    )


def _table(desk: Desk, shown: list[SessionInfo], screen: Screen, *, full_ids: bool) -> None:
    """One line a session. The title comes last: it alone has any length, and may run from right to left."""
    is_narrow = screen.width is not None and screen.width < NARROW
    heads = _Row("ID", "STATUS", "ACTIVE", *(("N", "TOK") if is_narrow else ("ENTRIES", "TOKENS")))
    needed = max(ROOM_MIN, TITLE_MIN + max(width(_origin(info)) for info in shown))
    for has_clock, columns in ((True, 5), (False, 5), (False, 4), (False, 3)):
        rows = [_row(info, desk, full_ids=full_ids, has_clock=has_clock)[:columns] for info in shown]
        cells = [max(width(row[n]) for row in (heads, *rows)) for n in range(columns)]
        room = None if screen.width is None else screen.width - sum(cells) - 2 * columns
        if room is None or room >= needed:
            break
    screen.line((f"{''.join(_padded(heads, cells))}TITLE", "dim"))
    for info, row in zip(shown, rows, strict=True):
        id, status, *rest = _padded(row, cells)
        spans: list[Span] = [(id, "id"), (status, STATUS_STYLES[info.status]), "".join(rest)]
        screen.line(*spans, *_title(info, None if room is None else max(TITLE_MIN, room)))


def _padded(row: Sequence[str], cells: list[int]) -> list[str]:
    """The cells of a row that are shown; numbers stand at the right."""
    return [pad(one_line(text), n, right=k > 2) + "  " for k, (text, n) in enumerate(zip(row, cells, strict=False))]


def _title(info: SessionInfo, room: int | None) -> list[Span]:
    """Title, tags and where it comes from, in at most ``room`` cells; the title gives way first."""
    marks = [f"  #{one_line(tag)}" for tag in info.tags]
    origin = f"  {origin_of(info)}" if info.parent is not None else ""
    title = one_line(info.title) or "(no title)"
    if room is not None:
        left = room - min(width(title), TITLE_MIN)
        origin = next((one for one in (origin, _origin(info)) if width(one) <= left), "")
        while marks and width("".join(marks)) + width(origin) > left:
            marks.pop()
        title = cut(title, room - width("".join(marks)) - width(origin))
    return [(title, "" if info.title else "dim"), ("".join(marks), "tag"), (origin, "dim")]


def _origin(info: SessionInfo) -> str:
    """What tells a session from the one that it comes from, in few words; empty when from none."""
    return "" if info.parent is None else f"  {origin_of(info).rsplit(' at ', 1)[0]}"


def origin_of(info: SessionInfo) -> str:
    """``fork of 3f9a1c22 at 17``: where a session comes from; empty when from nowhere."""
    parent = info.parent
    if parent is None:
        return ""
    links = {
        "fork": "fork of {} at {}",
        "child": "sub-agent of {}",
        "anew": "began anew from {}",
        "spill": "spilled from {} at {}",
    }
    return links[parent.link].format(short_id(parent.session), parent.seq)


# show


def show_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("session", type=given, help="id, part of an id, key:KEY or latest")
    parser.add_argument("--last", type=int, metavar="N", help="only the last N entries")
    parser.add_argument("--after", type=int, default=0, metavar="SEQ", help="only entries after this one")
    parser.add_argument("--upto", type=int, metavar="SEQ", help="only entries up to this one")
    parser.add_argument("--kinds", metavar="KINDS", help="only these kinds, such as message,note")
    parser.add_argument("--full", action="store_true", help="whole results and arguments, and the model's thinking")
    parser.add_argument(
        "--raw", action="store_true", help="the exact stored bodies, one after the other, each with a line end"
    )


def show(desk: Desk, args: Namespace, screen: Screen) -> int:
    """Show a session as a conversation."""
    if args.raw and screen.is_json:
        raise Invalid("--raw gives bytes and --json lines of JSON; leave one of them out", where="raw")
    pick = _Pick(args.after, args.upto, _kinds(args.kinds), args.last)
    if min(pick.after, pick.upto or 0, pick.last or 0) < 0:
        raise Invalid("--after, --upto and --last are numbers of entries, 0 or more", where="seq")
    session = desk.find(args.session)
    if args.raw:
        return _raw(session, pick, screen)
    if screen.is_json:
        return _each(
            session, pick, lambda entry: screen.emit(machine.entry(entry)), lambda error: screen.emit(_damage(error))
        )
    if pick.kinds is None and "import" in session.info.metadata:  # its records are for exports, not for eyes
        pick = pick._replace(kinds=tuple(sorted(KINDS)))
    header(session.info, desk, screen)
    retracted = _retracts(session, screen)
    conversation = Conversation(
        screen,
        now=desk.now,
        retracted=retracted,
        full=args.full,
        head=session.info.head,
        calls=lambda call: _calls(session, call),
    )
    return _each(session, pick, conversation.show, lambda error: conversation.damage(error.seq or 0, str(error)))


def _calls(session: segue.Session, call: str) -> list[Entry]:
    """The entries that may hold a call, for a result that is shown without it."""
    try:
        return [hit.entry for hit in session.by_ref(f"call:{call}", limit=CALLS_MAX)]
    except (Corrupt, Invalid):  # it is damaged, or an id that no ref can hold
        return []


def _retracts(session: segue.Session, screen: Screen) -> Retracts:
    try:
        return Retracts(hits(session.log, "retract"))
    except (Corrupt, ViewInvalid):
        screen.note("a record of what was taken back is damaged, so nothing is marked as retracted")
        return Retracts(())


class _Pick(NamedTuple):
    after: int
    upto: int | None
    kinds: tuple[str, ...] | None
    last: int | None


def _kinds(given: str | None) -> tuple[str, ...] | None:
    return None if given is None else tuple(kind.strip() for kind in given.split(",") if kind.strip())


def _damage(error: Corrupt) -> dict[str, Any]:
    return {"seq": error.seq, "damage": str(error)}


def _each(session: segue.Session, pick: _Pick, sound: Any, damaged: Any) -> int:
    """Give each entry to ``sound``, each damaged one to ``damaged``: damage hides nothing that is healthy."""
    code = DONE
    for found in entries(session, pick):
        if isinstance(found, Corrupt):
            code = FINDING
            damaged(found)
        else:
            sound(found)
    return code


def _raw(session: segue.Session, pick: _Pick, screen: Screen) -> int:
    def write(entry: Entry) -> None:
        if entry.body is None:
            screen.note(f"entry {entry.seq} is hollow: its content was erased")
        else:
            screen.body(entry.body)

    return _each(session, pick, write, lambda error: screen.note(str(error)))


def entries(session: segue.Session, pick: _Pick) -> Iterator[Entry | Corrupt]:
    """The chosen entries in order; in the place of a damaged one the error that tells of it."""
    after, upto = pick.after, session.info.head if pick.upto is None else min(pick.upto, session.info.head)
    if pick.last is not None:
        after = max(after, _start(session, pick, upto))
    pending: list[tuple[int, int] | Corrupt] = [(after, upto)]
    while pending:
        step = pending.pop()
        if isinstance(step, Corrupt):
            yield step
            continue
        after, upto = step
        try:
            for entry in session.history(after=after, upto=upto, kinds=pick.kinds):
                after = entry.seq
                yield entry
        except Corrupt as error:
            if error.seq is None or not after < error.seq <= upto:
                raise
            pending += [(error.seq, upto), error, (after, error.seq - 1)]


def _start(session: segue.Session, pick: _Pick, upto: int) -> int:
    """The seq before the last n entries of the chosen kinds."""
    assert pick.last is not None
    if pick.kinds is None or pick.last == 0:
        return max(0, upto - pick.last)
    found = session.read(upto=upto, kinds=pick.kinds, last=pick.last)
    return found[0].seq - 1 if found else upto


def header(info: SessionInfo, desk: Desk, screen: Screen) -> None:
    """Title, id, state, size and origin of a session, on two or three lines."""
    screen.wrapped(words=one_line(info.title) or "(no title)", style="bold")
    tokens = f"{short(info.usage.input)} tokens in, {short(info.usage.output)} out" if any(info.usage) else ""
    facts = [
        info.status
        + (f" until {clock(info.lease.expires_at, desk.now)}" if info.lease and info.status == "paused" else ""),
        f"last active {ago(info.active_at, desk.now)}, {clock(info.active_at, desk.now)}",
        plural(info.head, "entry", "entries"),
        tokens,
        "pinned" if info.is_pinned else "",
        f"lifetime ends {clock(info.due_at, desk.now)}" if info.due_at is not None else "",
        f"key {info.key}" if info.key else "",
    ]
    screen.line((info.id, "id"))
    _joined([fact for fact in facts if fact], " · ", "dim", screen)
    _joined([f"#{tag}" for tag in info.tags], " ", "tag", screen)
    if info.parent is not None:
        screen.line((origin_of(info), "dim"))


def _joined(words: list[str], between: str, style: str, screen: Screen) -> None:
    for line in joined(words, between, screen.width):
        screen.wrapped(words=line, style=style)


# resume


def resume_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "session", nargs="?", type=given, default="latest", help="id, part of an id, key:KEY or latest (the default)"
    )
    parser.add_argument("--language", default="en", metavar="TAG", help="of the briefing: en (the default) or zh")
    parser.add_argument(
        "--time-zone",
        metavar="ZONE",
        help="of the times in it: an IANA name, such as Asia/Shanghai (default: the machine's)",
    )
    parser.add_argument(
        "--files",
        action="append",
        default=[],
        metavar="DIR",
        help="look again at file: sources in this folder (may be repeated)",
    )


def resume(desk: Desk, args: Namespace, screen: Screen) -> int:
    """Show what a resume would find; writes nothing."""
    for folder in args.files:
        if not os.path.isdir(folder):  # noqa: PTH112 - Path's may raise
            raise Invalid(f"--files: there is no folder {folder!r}", where="files")
    back = desk.scope.resume(
        desk.find(args.session),
        language=args.language,
        time_zone=args.time_zone or datetime.now().astimezone().tzinfo,
        sources=segue.Sources(roots=args.files),
    )
    screen.emit({"session": machine.session(back.info), "briefing": back.briefing.facts(), "text": str(back.briefing)})
    header(back.info, desk, screen)
    screen.line()
    for line in str(back.briefing).split("\n"):
        screen.wrapped(words=line)
    return DONE
