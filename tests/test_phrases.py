"""Texts that count: one is singular."""

from __future__ import annotations

import pytest

import segue
from segue.phrases import Counted, phrases

ENGLISH = phrases("en")


@pytest.mark.parametrize(
    ("template", "one", "more"),
    [
        (ENGLISH.size_entries, "History: 1 entry", "History: 1,001 entries"),
        (ENGLISH.left_out, "1 older one not checked", "1,001 older ones not checked"),
        (ENGLISH.unreadable, "1 record of readings", "1,001 records of readings"),
        (ENGLISH.reasons["expired"], "1 reading is too old", "1,001 readings are too old"),
        (ENGLISH.reasons["unknown-effects"], "1 action has an", "1,001 actions have an"),
    ],
)
def test_one_is_singular_and_everything_else_plural(template, one, more):
    assert template.format(n="1", entries="1").startswith(one)
    assert template.format(n="1,001", entries="1,001").startswith(more)


def test_what_is_given_is_not_taken_for_words_of_the_template():
    assert Counted("{n} {name}").format(n="1", name="<n:a|b> {n}") == "1 <n:a|b> {n}"


def test_a_briefing_of_one_entry_says_one_entry():
    with segue.open("memory:") as db:
        me = db.scope()
        session = me.create()
        session.append({"note": 1}, kind="x.own", format="x")
        assert "History: 1 entry." in str(me.resume(session).briefing)
