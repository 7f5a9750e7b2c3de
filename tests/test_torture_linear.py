"""
Linearizability: what many processes were answered, some of them killed in the middle, has one order that explains it.
"""

from __future__ import annotations

import pytest

import fleet
import segue
import stores
from segue.testing.linear import Log, explain, step

FULL = stores.FULL
HISTORIES, CLIENTS, OPERATIONS, KILLS = (200, 8, 100, 3) if FULL else (8, 5, 50, 2)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(6_000)]


@pytest.fixture(params=stores.SHARED)
def url(request, tmp_path):
    with stores.url_of(request.param, tmp_path) as url:
        yield url


def test_what_processes_were_answered_has_an_order_though_some_were_killed(url, record_property):
    unknown = 0
    with segue.open(url) as db:
        for seed in range(HISTORIES):
            session = db.scope(*fleet.SCOPE).create()
            history = fleet.history_of(url, session, clients=CLIENTS, operations=OPERATIONS, kills=KILLS, seed=seed)
            unknown += sum(call.ended is None for call in history)
            verdict = explain(history, step, Log())
            assert verdict.is_linearizable, (seed, verdict.stuck)
    for name, value in {"cases": HISTORIES, "unknown": unknown, "violations": 0, "seed": "0…"}.items():
        record_property(name, value)
    assert unknown > 0


@pytest.mark.parametrize("bug", ["lost", "stale"])
def test_a_bug_planted_in_one_of_the_processes_stores_is_found(url, bug):
    with segue.open(url) as db:
        session = db.scope(*fleet.SCOPE).create()
        history = fleet.history_of(url, session, clients=3, operations=60, kills=0, seed=1, bug=bug)
        assert not explain(history, step, Log()).is_linearizable
