"""Local transcripts of Claude Code, brought into the store of the SDK, so that a query can resume them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any

from claude_agent_sdk import project_key_for_directory

from segue.errors import NotDone, Unavailable
from segue.importers import FileReport, SessionReport, Source, files, printable, recognise
from segue.model import Usage

from .mirror import Mirror
from .place import FORMAT, Place
from .store import SegueSessionStore, Sending

BATCH = 500
"""Most lines of one append."""

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_META = "agent_metadata"
_decoder = json.JSONDecoder(strict=False)

Line = dict[str, Any]


def import_transcripts(
    store: SegueSessionStore, paths: Iterable[str | PathLike[str]], *, is_dry: bool = False
) -> Iterator[FileReport]:
    """
    Bring transcripts in as the SDK itself would have mirrored them; twice is once, a grown file adds what is new.

    The project is the name of the file's folder below ``projects``, else it is made of the ``cwd`` in its lines, unless
    the store has one for all. What is no JSON object cannot be resumed: it is told with its line and left out
    (``segue.importers`` keeps it). Each file is read whole.

    Args:
        store: Where to.
        paths: Files, and folders of them with sub-agents' transcripts in ``<session>/subagents``.
        is_dry: Compare and count, and write nothing.

    Raises:
        Invalid: A path is not there.
        Unavailable: The store cannot work now; what was reported so far is in.
    """
    for path in files(paths):
        yield _import(store, path, is_dry=is_dry)


def _import(store: SegueSessionStore, path: Path, *, is_dry: bool) -> FileReport:
    report = FileReport(printable(path))
    try:
        source = Source(path)
        report.bytes = source.size
        importer = recognise(source)
        if importer is None or not importer.__name__.endswith(".claude_code") or source.document is not None:
            report.reason = "no local transcript of Claude Code"
            return report
        report.format = FORMAT
        found = list(_lines(source, report))
    except OSError as error:
        report.outcome, report.reason = "failed", f"the file cannot be read: {error.strerror or error}"
        return report
    place = _place(path, found, store.project)
    if place is None:
        report.reason = "there is no session id in it"
        return report
    try:
        _bring(store.mirror, place, found, report, is_dry=is_dry)
    except NotDone as error:
        if isinstance(error, Unavailable):
            raise
        report.outcome, report.reason = "failed", str(error)
    return report


def _lines(source: Source, report: FileReport) -> Iterator[Line]:
    """The lines' objects, each uuid once; then what stands beside a sub-agent's transcript."""
    seen: set[str] = set()
    for line in source.lines():
        report.records += 1
        values = list(_objects(line.raw.decode("utf-8", "replace")))
        if len(values) != 1 and line.raw.strip():
            report.note("glued" if values else "broken", line.number)
        for value in values:
            name = value.get("uuid")
            if isinstance(name, str) and name in seen:
                report.note("duplicate-id", line.number, name[:80])
                continue
            if isinstance(name, str):
                seen.add(name)
            yield value
    try:
        meta = json.loads(source.path.with_suffix(".meta.json").read_bytes())
    except (OSError, ValueError):
        return
    if isinstance(meta, dict):
        yield {**meta, "type": _META}


def _objects(text: str) -> Iterator[Line]:
    at = text.find("{")
    while at >= 0:
        try:
            value, at = _decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return
        if isinstance(value, dict):
            yield value
        at = text.find("{", at)


def _place(path: Path, found: list[Line], project: str | None) -> Place | None:
    folders = path.parts[:-1]
    at = next((n for n, name in enumerate(folders) if n and name == "subagents" and _UUID.fullmatch(folders[n - 1])), 0)
    if at:
        main = Path(*folders[: at - 1], f"{folders[at - 1]}.jsonl")
        subpath = "/".join([*folders[at:], path.stem])
        return Place(project or _project(main, found), folders[at - 1], subpath)
    ids = (line.get("sessionId") for line in found)
    session = path.stem if _UUID.fullmatch(path.stem) else next((id for id in ids if isinstance(id, str) and id), "")
    return Place(project or _project(path, found), session) if session else None


def _project(main: Path, found: list[Line]) -> str:
    if main.parent.parent.name == "projects":
        return main.parent.name
    cwd = next((line["cwd"] for line in found if isinstance(line.get("cwd"), str) and line["cwd"]), None)
    return main.parent.name if cwd is None else project_key_for_directory(cwd)


def _bring(mirror: Mirror, place: Place, found: list[Line], report: FileReport, *, is_dry: bool) -> None:
    known, writer = mirror.load(place) or ([], mirror.writers.of(place.main))
    new = _new(known, found)
    if new is None:
        report.outcome, report.reason = (
            "failed",
            "the store has another transcript of this session; nothing was changed",
        )
        return
    before = _usage(mirror, place)
    for at in range(0, 0 if is_dry else len(new), BATCH):
        Sending(mirror, place, new[at : at + BATCH], writer=writer).store()
    session = mirror.session(place)
    told = SessionReport("" if session is None else session.id, place.key, format=FORMAT, records=len(found))
    told.entries = len(new)
    told.messages = sum(line.get("type") in {"user", "assistant"} for line in found)
    told.usage = Usage(*(now - then for now, then in zip(_usage(mirror, place), before, strict=True)))
    told.title = "" if session is None else session.refresh().title
    report.sessions.append(told)
    report.outcome = "imported" if new else "unchanged"


def _new(known: list[Line], found: list[Line]) -> list[Line] | None:
    """The lines behind those that the store has; None when it has others. Facts beside the lines have no place."""
    stored = [line for line in known if line.get("type") != _META]
    told = [line for line in found if line.get("type") != _META]
    facts = [line for line in found if line.get("type") == _META and line not in known]
    shared = min(len(stored), len(told))
    return [*told[shared:], *facts] if stored[:shared] == told[:shared] else None


def _usage(mirror: Mirror, place: Place) -> Usage:
    session = mirror.session(place)
    return Usage() if session is None else session.refresh().usage
