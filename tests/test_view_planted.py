"""Deliberate bugs in the view: random histories, held to what a view promises, must notice each of them."""

from __future__ import annotations

import random

import pytest

from segue import formats, view
from segue.errors import ViewInvalid
from segue.formats import anthropic, layout, openai_responses
from segue.formats.parts import Message
from view_logs import FORMATS, OPS, check_growth

SEEDS = 60


def is_noticed() -> bool:
    for seed in range(SEEDS):
        for format in FORMATS:
            rng = random.Random(seed)
            ops = [(rng.choice(OPS), rng.randrange(31), rng.randrange(31)) for _ in range(40)]
            try:
                check_growth(format, ops)
            except (AssertionError, ViewInvalid):
                return True
    return False


def off_by_one_at_the_cut(patch):
    real = view.read_cut

    def read_cut(entry, body, rules, **options):
        cut = real(entry, body, rules, **options)
        return cut._replace(upto=max(0, cut.upto - 1))

    patch.setattr(view, "read_cut", read_cut)


def the_last_open_call_is_not_settled(patch):
    real = layout.Layout.end

    def end(self):
        if self._exchange is not None and not self.keep_open:
            self._exchange.round.open.popitem() if self._exchange.round.open else None
        real(self)

    patch.setattr(layout.Layout, "end", end)


def results_after_text(patch):
    real = anthropic._message

    def message(head, blocks, seqs):
        return real(head, blocks[::-1], seqs)

    patch.setattr(anthropic, "_message", message)


def retractions_are_ignored(patch):
    patch.setattr(view.Retracts, "by", lambda self, entry: 0)


def retracted_entries_are_dropped_without_a_word(patch):
    real = view._Builder._leave_out

    def leave_out(self, entry, laid, intake, omitted, marks):
        real(self, entry, laid, intake, [], marks)

    patch.setattr(view._Builder, "_leave_out", leave_out)


def a_window_cuts_through_a_pair(patch):
    real = view._Builder._window

    def window(self, base):
        entries, first, reason = real(self, base)
        return [e for e in entries if e.seq > first], first, reason

    patch.setattr(view._Builder, "_window", window)


def a_join_changes_what_was_handed_out(patch):
    """Text after the results is put into the message of the results, as many a client does."""
    real = layout.Layout._emit

    def emit(self, item):
        real(self, item)
        if len(self.units) > 1 and item.shape.is_question:
            last = self.units[-2].messages[-1]
            if last.value.get("role") == "user" and isinstance(last.value["content"], list):
                joined = {"role": "user", "content": [*last.value["content"], {"type": "text", "text": "joined"}]}
                self.units[-2].messages[-1] = Message(view.codec.encode(joined), joined, last.seqs)

    patch.setattr(layout.Layout, "_emit", emit)


def late_results_replace_settlements(patch):
    """A result that comes after the model went on is put where the settlement was."""
    patch.setattr(layout._Exchange, "is_passed", property(lambda self: False))
    patch.setattr(layout.Layout, "_joins", lambda self, exchange: bool(exchange.round.open or exchange.needs_next))


def an_epoch_that_forgets_retractions(patch):
    real = view._Builder._epoch
    patch.setattr(view._Builder, "_epoch", lambda self, cut, first, marks: real(self, cut, first, ()))


def an_epoch_that_forgets_the_cut(patch):
    real = view._Builder._epoch
    patch.setattr(view._Builder, "_epoch", lambda self, cut, first, marks: real(self, None, first, marks))


def joined_blocks_are_encoded_anew(patch):
    real = anthropic._blocks
    patch.setattr(anthropic, "_blocks", lambda item: [(view.codec.encode(b), b) for _, b in real(item)])


def reasoning_stays_when_its_item_is_gone(patch):
    patch.setattr(openai_responses, "_with_reasoning", lambda items, omitted: list(items))
    patch.setattr(layout.Layout, "gap", lambda self, results, *, is_unknown: None)


def cuts_fall_anywhere(patch):
    patch.setattr(view, "possible_starts", lambda units: set(range(len(units))))


def orphan_results_are_kept(patch):
    real = layout.Layout._answer

    def answer(self, item):
        if self._exchange is None:
            self._emit(item)
        else:
            real(self, item)

    patch.setattr(layout.Layout, "_answer", answer)
    patch.setattr(anthropic.Anthropic, "render_other", lambda self, item: Message(item.body, item.value, (item.seq,)))


def nothing_stands_for_what_was_left_out(patch):
    patch.setattr(anthropic.Anthropic, "opening", lambda self, first: None)


def empty_texts_are_sent(patch):
    patch.setattr(anthropic, "_is_blank", lambda block: False)


BUGS = [
    off_by_one_at_the_cut,
    the_last_open_call_is_not_settled,
    results_after_text,
    retractions_are_ignored,
    retracted_entries_are_dropped_without_a_word,
    a_window_cuts_through_a_pair,
    a_join_changes_what_was_handed_out,
    late_results_replace_settlements,
    an_epoch_that_forgets_retractions,
    an_epoch_that_forgets_the_cut,
    joined_blocks_are_encoded_anew,
    reasoning_stays_when_its_item_is_gone,
    cuts_fall_anywhere,
    orphan_results_are_kept,
    empty_texts_are_sent,
    nothing_stands_for_what_was_left_out,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_noticed(bug, monkeypatch):
    # Segue's own check is switched off: what notices must not be what it is to notice.
    for rules in formats._RULES.values():
        monkeypatch.setattr(type(rules), "check", lambda self, messages, **options: None)
    bug(monkeypatch)
    assert is_noticed(), f"{bug.__name__} went unnoticed"


def test_without_a_planted_bug_nothing_is_noticed(monkeypatch):
    for seed in range(8):
        for format in FORMATS:
            rng = random.Random(seed)
            check_growth(format, [(rng.choice(OPS), rng.randrange(31), rng.randrange(31)) for _ in range(40)])
