"""The example's two design pages say what the code does: the injected text, word for word, and the numbers."""

from __future__ import annotations

import re
from datetime import date, timedelta

import pytest
from examples.sales_analyst.clock import ZONE, move_clock
from examples.sales_analyst.story import LIFETIME, Place
from examples.sales_analyst.tools import sources_of
from examples.sales_analyst.tuesday import WAIT
from examples.sales_analyst.warehouse import Warehouse

import segue
from segue.database import PURGE_AFTER
from test_sales_analyst import ROOT, YEAR, play

PAGES = {"en": "DESIGN.md", "zh": "DESIGN.zh.md"}


def page(language):
    return (ROOT / "examples" / "sales_analyst" / PAGES[language]).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def wednesday(tmp_path_factory):
    """The briefing of the day after the story, 29 ½ hours later, when August was restated once more."""
    cwd = tmp_path_factory.mktemp("wednesday")
    assert play(cwd).returncode == 0
    place = Place(cwd / "segue-demo", f"sqlite:///{cwd / 'segue-demo' / 'agent.db'}", YEAR)
    with segue.open(place.store) as db, Warehouse(place.warehouse) as warehouse:
        at = place.story.at(2, 2, 10)
        warehouse.restate(region="华东", month=date(YEAR, 8, 1), share=(3, 6), at=at)
        me = db.scope(tenant="acme", user="lin")
        session = me.latest()
        move_clock(db, session.info.active_at + timedelta(hours=29, minutes=30))
        options = {"sources": sources_of(warehouse, place.folder), "time_zone": ZONE}
        yield {language: me.resume(session, language=language, **options).briefing for language in PAGES}


@pytest.mark.parametrize("language", PAGES)
def test_the_page_shows_the_injected_text_word_for_word(wednesday, language):
    (shown,) = re.findall(r"```text\n(.*?)\n```", page(language), re.DOTALL)
    assert shown == wednesday[language].text()
    assert wednesday[language].gap > timedelta(hours=24)


@pytest.mark.parametrize("language", PAGES)
def test_the_pages_numbers_are_the_codes(language):
    text = page(language)
    for number, unit in (
        (LIFETIME.days, {"en": "days", "zh": "天"}),
        (PURGE_AFTER.days, {"en": "days", "zh": "天"}),
        (WAIT.seconds, {"en": "seconds", "zh": "秒"}),
    ):
        assert f"{number} {unit[language]}" in text


def test_both_pages_are_one_page_with_the_same_headings():
    heads = {language: re.findall(r"^## (\d)", page(language), re.MULTILINE) for language in PAGES}
    assert heads["en"] == heads["zh"] == list("123456")
    assert all(len(page(language).splitlines()) <= 90 for language in PAGES)
