"""The suite can fail: every bug that is planted in a store is noticed by the area that it belongs to."""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings

from planted_in_memory import MEMORY_BUGS
from planted_in_sqlite import SQLITE_BUGS
from segue.stores.memory import MemoryStore
from segue.stores.sqlite import SQLiteStore
from segue.testing import StoreCase
from segue.testing.histories import HistoryTests
from segue.testing.model import histories
from suite_runner import first_failure, run


@pytest.fixture(autouse=True)
def no_shrinking():
    """It is enough to know that a history fails; the shortest one is not looked for."""
    settings.register_profile("planted", phases=[Phase.generate], database=None, derandomize=True)
    before = settings.get_current_profile_name()
    settings.load_profile("planted")
    yield
    settings.load_profile(before)


@pytest.mark.parametrize("bug", MEMORY_BUGS)
def test_a_bug_planted_in_the_memory_store_is_noticed(bug, monkeypatch, tmp_path):
    area, plant = MEMORY_BUGS[bug]
    store = plant(monkeypatch) or MemoryStore
    assert first_failure(lambda where: store(str(where)), (area,), tmp_path / "store") is not None


@pytest.mark.parametrize("bug", SQLITE_BUGS)
def test_a_bug_planted_in_the_sqlite_store_is_noticed(bug, monkeypatch, tmp_path):
    area, plant = SQLITE_BUGS[bug]
    plant(monkeypatch)
    assert first_failure(lambda where: SQLiteStore(where / "s.db"), (area,), tmp_path / "store") is not None


def test_a_store_without_a_planted_bug_passes_the_same_areas(tmp_path):
    areas = tuple({area for area, _ in MEMORY_BUGS.values()} - {HistoryTests})
    assert first_failure(lambda where: MemoryStore(str(where)), areas, tmp_path / "store") is None


MODEL_NOTICES = [
    "sqlite compares no fence",
    "sqlite compares no digests",
    "sqlite forgets inherited ids",
    "sqlite forks see what their parents add later",
    "sqlite takes what forks share",
    "sqlite hollows and leaves the refs",
    "sqlite serves who came last",
    "sqlite stores half a batch",
    "sqlite interrupts anybody",
]


@pytest.mark.slow
@pytest.mark.parametrize("bug", MODEL_NOTICES)
def test_random_histories_notice_a_bug_planted_in_the_sqlite_store(bug, monkeypatch, tmp_path):
    SQLITE_BUGS[bug][1](monkeypatch)

    class Case(StoreCase):
        def make_store(self, directory):
            return SQLiteStore(directory / "s.db")

    with pytest.raises(AssertionError):
        run(Case(), lambda case: histories(case, examples=100), tmp_path)
