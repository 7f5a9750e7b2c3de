"""Forks of a session: the first items of it under an id of their own, nothing copied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import segue
from segue.errors import Invalid
from segue.mask import Mask

from . import history


def fork(parent: segue.Session, key: str, keep: int | None, *, root: str, options: Mapping[str, Any]) -> segue.Session:
    """
    A fork that shows the parent's first ``keep`` items as the parent shows them now.

    What the parent took back after the fork point is taken back in the fork, too; a clearing or a
    compaction that stands later than the last item kept stands in the fork as well.
    """
    base, items = history.read(parent)
    keep = len(items) if keep is None else keep
    if not 0 <= keep <= len(items):
        raise Invalid(f"keep must lie between 0 and the number of items ({len(items)}), not {keep!r}", where="keep")
    if keep < len(base.summary):
        raise Invalid(f"the first {len(base.summary)} items are a summary; keep at least those", where="keep")
    at = base.head if keep == len(items) else max(items[keep - 1].seq if keep else 0, base.start)
    metadata = {**parent.info.metadata, **options.get("metadata", {})}
    metadata.setdefault("agents.root", root)
    made = parent.fork(at, key=key, **{**options, "metadata": metadata})
    marks = _marks(parent, base, at)
    if marks:
        made.append(*marks)
    return made


def _marks(parent: segue.Session, base: history.Ground, at: int) -> list[segue.Draft]:
    """What the parent wrote after the fork point about entries before it."""
    marks: list[segue.Draft] = []
    if base.cut > at:
        marks.append(history.cut(base.start, "forked", summary=base.summary))
    entries = parent.read(after=base.start, upto=at, kinds=history.KINDS)
    gone = [entry.seq for entry in entries if base.taken.holds(entry)]
    if gone:
        marks.append(history.retraction(gone, "forked"))
    masks = tuple(base.taken.masks_after(at))
    if masks:
        marks.append(Mask(masks).draft())
    return marks
