"""Token accounting: each model call once, by whatever it is added up, and equal to a recount of the log."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

import segue
import stores
from segue import usage
from segue.answers import usage_of
from segue.family import erase_family, family, fork_family, keep_result
from segue.model import Usage


@pytest.fixture(params=["memory", "sqlite", "jsonl"])
def me(request, tmp_path):
    with stores.url_of(request.param, tmp_path) as url, segue.open(url) as db:
        yield db.scope()


def say(target, n, **options):
    target.append({"role": "user", "content": f"q{n}"})
    spent = Usage(input=100 * n, output=n, cache_read=10 * n)
    return target.append({"role": "assistant", "content": f"a{n}"}, usage=spent, refs=("model:m",), **options)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"input_tokens": 5, "output_tokens": 2, "cache_read_input_tokens": 3}, Usage(8, 2, 3)),
        (
            {
                "input_tokens": 1,
                "output_tokens": 2,
                "cache_creation_input_tokens": 7,
                "cache_creation": {"ephemeral_5m_input_tokens": 3, "ephemeral_1h_input_tokens": 4},
            },
            Usage(8, 2, 0, 7, 4),
        ),
        ({"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 6}}, Usage(9, 4, 6)),
        (
            {
                "input_tokens": 9,
                "output_tokens": 4,
                "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 3},
                "output_tokens_details": {"reasoning_tokens": 1},
            },
            Usage(9, 4, 2, 3, 0, 1),
        ),
        ({"prompt_tokens": None, "completion_tokens": "x"}, Usage()),
        (None, None),
    ],
)
def test_all_providers_counts_have_one_shape(counts, expected):
    assert usage_of(counts) == expected


def test_totals_by_run_session_family_scope_and_day_equal_a_recount(me):
    session = me.create()
    with session.run(id="r1") as run:
        say(run, 1)
        say(run, 2, occurred_at=datetime(2026, 1, 2, 23, tzinfo=UTC))
    with session.run(id="r2") as run:
        say(run, 3)
    child = session.child("helper", call="t1")
    say(child, 5)
    fork = session.fork()
    say(fork, 7)
    assert usage.by_run(session) == {"r1": Usage(300, 3, 30), "r2": Usage(300, 3, 30)}
    assert session.refresh().usage == usage.by_run(session).total == Usage(600, 6, 60)
    assert usage.of_family(me, session) == Usage(1_100, 11, 110)
    assert usage.of_family(me, fork) == Usage(700, 7, 70)
    assert usage.of_scope(me) == Usage(1_800, 18, 180)
    zone = timezone(timedelta(hours=8))
    assert usage.by_day([session], zone=zone)[datetime(2026, 1, 3, tzinfo=UTC).date()] == Usage(200, 2, 20)
    seen = {}
    for info in me.iterate(unlisted=True):
        for entry in me.open(info.id).read():
            seen[(entry.id, entry.digest)] = entry.usage or Usage()
    assert usage.add(seen.values()) == usage.of_scope(me)


def test_a_retry_counts_nothing(me):
    session = me.create()
    for _ in range(3):
        session.append({"role": "assistant", "content": "a"}, ids=["a1"], usage=Usage(5, 1))
    assert session.refresh().usage == Usage(5, 1)


@pytest.mark.parametrize(
    ("outputs", "total"),
    [((9, 9, 159), 159), ((159, 9, 9), 159), ((7,), 7)],
)
def test_several_lines_of_one_message_are_counted_once_with_the_highest_counts(outputs, total):
    found = usage.once([("m1", Usage(50, n)) for n in outputs])
    assert [one for one in found if one] == [Usage(50, total)]
    assert found[-1] is not None


def test_lines_without_an_id_are_each_their_own():
    assert usage.once([("", Usage(1)), ("m", None), ("", Usage(2))]) == [Usage(1), None, Usage(2)]


def test_what_it_costs_is_told_by_a_table_of_ones_own(me):
    session = me.create()
    session.append(
        {"role": "assistant", "content": "a"}, usage=Usage(1_000_000, 1_000_000, 500_000), refs=("model:m-1",)
    )
    assert usage.Prices({"m-*": usage.Price(2, 8, cache_read=0.2)}).of([session]) == pytest.approx(9.1)
    with pytest.raises(segue.Invalid, match="m-1"):
        usage.Prices({}).of([session])


# Sub-agents


def test_a_child_is_made_once_has_its_own_log_and_is_linked_both_ways(me):
    session = me.create()
    child = session.child("look", call="t1")
    say(child, 1)
    assert session.child("look", call="t1").id == child.id
    assert child.info.parent == segue.Parent(session.id, 1, "child")
    assert session.by_ref(f"child:{child.id}")[0].entry.json()["call"] == "t1"
    assert child.id not in {info.id for info in me.iterate()}
    assert len(me.resume(child.id).messages()) == 2
    assert session.messages() == []


def test_an_ephemeral_child_keeps_only_its_result_and_its_tokens(me):
    child = me.create().child("look")
    with pytest.raises(segue.Invalid):
        keep_result(child)
    say(child, 1)
    say(child, 2)
    assert keep_result(child) == 3
    assert [e.json() for e in child.read() if not e.is_hollow] == [{"role": "assistant", "content": "a2"}]
    assert child.refresh().usage == Usage(300, 3, 30)


def test_a_family_is_forked_and_erased_together(me):
    session = me.create()
    child = session.child("a")
    grandchild = child.child("b")
    say(child, 1)
    made, forks = fork_family(me, session)
    assert [one.id for one in family(me, session)] == [session.id, child.id, grandchild.id]
    assert erase_family(me, session).sessions == 3
    for one in (session, child, grandchild):
        with pytest.raises(segue.NotFound):
            me.open(one.id)
    assert len(forks[child.id].messages()) == 2
    assert made.refresh().head == 1


def test_children_can_outlive_an_erased_parent(me):
    session = me.create()
    child = session.child("a")
    assert erase_family(me, session, children="keep").sessions == 1
    assert me.open(child.id)
