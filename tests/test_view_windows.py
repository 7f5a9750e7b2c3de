"""Windows of every recorded file, where they are at hand: none broken, none smaller than it need be."""

from __future__ import annotations

from collections import Counter
from contextlib import closing

import pytest

import segue
from import_samples import REAL
from segue.codec import encode
from segue.errors import ViewInvalid
from segue.formats import rules
from segue.importers import import_paths
from segue.tokens import estimate_tokens
from segue.view import View, ViewSpec
from stores import FULL
from view_logs import FORMATS, begins_with_opening, check_beginning, strict

pytestmark = pytest.mark.skipif(not REAL.is_dir(), reason="the recorded files are not here")

LASTS = range(1, 51) if FULL else (1, 2, 3, 5, 8, 13, 21, 34, 50)
BUDGETS = range(1_000, 100_001, 1_000) if FULL else (1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
EVERY = 1 if FULL else 8
OPENING = estimate_tokens(encode(rules("anthropic").opening({"role": "assistant", "content": "x"})))


@pytest.fixture(scope="module")
def sessions():
    with closing(segue.open("memory:")) as db:
        scope = db.scope()
        for _ in import_paths(scope, [REAL]):
            pass
        found = sorted((scope.open(info.id) for info in scope.iterate(unlisted=True)), key=lambda s: s.info.key)
        yield found[::EVERY]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.timeout(3_000)
def test_a_window_is_whole_begins_rightly_and_holds_what_fits(sessions, format):
    told = Counter()
    for session in sessions:
        whole = session.view(ViewSpec(format, foreign="convert"))
        if not whole.units:
            continue
        told["sessions"] += 1
        look = _Look(session, whole, told)
        for last in LASTS:
            if last <= len(whole.seqs) + 1:  # a longer one is the same again
                look.last_entries(last)
                look.last_turns(last)
        for budget in BUDGETS:
            look.budget(budget)
            if budget > whole.estimated_tokens:
                break
    assert told["sessions"] > 400 // EVERY
    assert told["windows"] > 2_000 // EVERY
    print(format, dict(told))


class _Look:
    """All windows of one session, against its whole view."""

    def __init__(self, session, whole: View, told: Counter) -> None:
        self.session, self.whole, self.told = session, whole, told
        self.units = [set().union(*whole.seqs[unit.start : unit.end]) for unit in whole.units]
        self.seqs = [entry.seq for entry in session.history(kinds=("message", "note"))]

    def view(self, **window) -> View:
        view = self.session.view(ViewSpec(self.whole.spec.format, foreign="convert", **window))
        where = f"{self.session.info.key} {window}"
        rules(view.spec.format).check(view.messages)
        strict(view.spec.format, view.messages)
        check_beginning(view)
        held = {seq for seqs in view.seqs for seq in seqs}
        told = {seq for one in view.omitted for seq in range(one.first, one.last + 1)}
        assert set().union(*self.units) <= held | told, where
        assert self.units[-1] & held, f"{where}: without the newest unit"
        self.told["windows"] += 1
        self.told["opened"] += begins_with_opening(view)
        return view

    def holds(self, view: View, wanted: int, where: str) -> None:
        """Nearly as many units as would fit, the newest ones, and each of them whole."""
        held = {seq for seqs in view.seqs for seq in seqs}
        told = {one.first for one in view.omitted if one.first == one.last}
        assert all(unit <= held | told for unit in self.units if unit & held), f"{where}: half a unit"
        assert len(view.units) >= 0.9 * wanted, f"{where}: {len(view.units)} of {wanted} units that would fit"
        begin = max((one.last for one in view.omitted if one.reason in ("window", "budget")), default=0)
        assert all(seq > begin for seq in held)
        self.told["units wanted"] += wanted
        self.told["units held"] += min(len(view.units), wanted)

    def fits(self, limit: int, size_from) -> int:
        """How many of the newest units stay within a limit; a view may not begin just anywhere."""
        units = self.whole.units
        found = (n for n in range(len(units), 0, -1) if units[-n].may_start and size_from(len(units) - n) <= limit)
        return next(found, 1)

    def budget(self, tokens: int) -> None:
        wanted = self.fits(tokens, self.tokens_from)
        where = f"{self.session.info.key} budget {tokens}"
        try:
            view = self.view(budget_tokens=tokens)
        except ViewInvalid as error:
            assert error.rule == "unit-exceeds-budget"
            assert self.tokens_from(len(self.units) - wanted) > tokens, f"{where}: refused, but something would fit"
            self.told["refused"] += 1
            return
        assert view.estimated_tokens <= tokens
        self.holds(view, wanted, where)

    def tokens_from(self, index: int) -> int:
        """Size of a view that begins at a unit: with the summary, and with what stands for what is left out."""
        units, whole = self.whole.units, self.whole
        summary = whole.estimated_tokens - sum(unit.tokens for unit in units)
        begins = whole.messages[units[index].start]
        needs = index and not summary and whole.spec.format == "anthropic" and begins["role"] != "user"
        return summary + sum(unit.tokens for unit in units[index:]) + (OPENING if needs else 0)

    def last_entries(self, last: int) -> None:
        wanted = self.fits(last, lambda index: sum(seq >= self.whole.units[index].first for seq in self.seqs))
        view = self.view(last_entries=last)
        shown = {seq for seqs in view.seqs for seq in seqs}
        assert len(shown) <= last or not any(unit.may_start for unit in view.units[1:])
        self.holds(view, wanted, f"{self.session.info.key} last_entries {last}")

    def last_turns(self, last: int) -> None:
        starts = [index for index, unit in enumerate(self.whole.units) if unit.starts_turn]
        begin = starts[-last] if len(starts) >= last else 0
        view = self.view(last_turns=last)
        turns = sum(unit.starts_turn for unit in view.units)
        where = f"{self.session.info.key} last_turns {last}"
        assert turns <= last, f"{where}: {turns} turns"
        self.holds(view, len(self.units) - begin, where)
