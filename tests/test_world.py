"""Observations, effects and the check on resume: what is told, what is bounded, and that nothing is guessed."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import threading
import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import worlds
from segue import codec, ledger, model
from segue.errors import Invalid, MissingExtra
from segue.ledger import (
    Effect,
    Observation,
    Version,
    effect_key,
    effects_of_others,
    known,
    live,
    open_effects,
    source_ref,
)
from segue.world import THREADS_MAX, Denied, Gone, Sources, Unanswered, check, look

NOW = datetime(2026, 11, 30, 1, 5, tzinfo=UTC)
HOUR = timedelta(hours=1)
SOON = timedelta(milliseconds=200)


def entry(seq, body, kind="observation", *, run=None, at=NOW, id=None, format="segue"):
    raw = body if isinstance(body, bytes | None) else codec.encode(body)
    return model.Entry(seq, id or f"e{seq}", kind, format, "tool", raw, b"", (), run, model.to_us(at), None, None)


def seen(source="a", version="1", **options):
    options.setdefault("observed_at", NOW - HOUR)
    return Observation(source, version and Version("value", version), **options)


def sources(**answers):
    made = Sources()
    for name, answer in answers.items():
        made.register(name, answer if callable(answer) else (lambda answer=answer: answer))
    return made


def outcome(observation, registry, **options):
    (finding,) = check([observation], registry, budget=SOON, now=NOW, **options)
    return finding.outcome


# Observations


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(codec="utf-8"), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3),
    max_leaves=5,
)
printable = st.text(st.characters(codec="utf-8"), min_size=1, max_size=60).filter(str.isprintable)
versions = st.builds(Version, st.sampled_from(["etag", "value", "sha256"]), printable)
observations = st.builds(
    Observation,
    source=printable,
    version=st.none() | versions,
    digest=st.none() | st.just("ab" * 32),
    observed_at=st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),
    max_age=st.none() | st.timedeltas(timedelta(), timedelta(days=4000)),
    tool=st.none() | printable,
    arguments=json_values,
    principal=st.none() | printable,
    call=st.none() | printable,
    collection=st.booleans(),
)


@given(observations)
def test_an_observation_comes_back_from_its_body(observation):
    assert Observation.from_body(codec.decode(codec.encode(observation.body()))) == observation


def test_the_body_has_the_documented_keys():
    body = seen(max_age=HOUR, tool="query", arguments={"region": "华东"}, principal="lin", call="c1").body()
    assert body == {
        "source": "a",
        "kind": "value",
        "version": "1",
        "digest": None,
        "observed_at": "2026-11-30T00:05:00Z",
        "max_age_seconds": 3600.0,
        "tool": "query",
        "arguments": {"region": "华东"},
        "principal": "lin",
        "call": "c1",
    }


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        "x",
        {},
        {"source": ""},
        {"source": 5, "observed_at": "2026-11-30T00:05:00Z"},
        {"source": "a", "observed_at": "2026-11-30T00:05:00"},
        {"source": "a", "observed_at": 17},
        {"source": "a", "observed_at": "2026-11-30T00:05:00Z", "version": 5, "kind": "etag"},
        {"source": "a", "observed_at": "2026-11-30T00:05:00Z", "version": "x"},
        {"source": "a", "observed_at": "2026-11-30T00:05:00Z", "max_age_seconds": "soon"},
        {"source": "a", "observed_at": "2026-11-30T00:05:00Z", "max_age_seconds": 1e300},
        {"source": "a", "observed_at": "2026-11-30T00:05:00Z", "tool": {"name": "x"}},
        {"source": "x" * 3000, "observed_at": "2026-11-30T00:05:00Z"},
    ],
)
def test_a_body_that_is_no_observation_is_refused_by_type(body):
    with pytest.raises(Invalid):
        Observation.from_body(body)


def test_the_stamp_is_one_absolute_line_in_the_language():
    observation = seen("warehouse:sales.orders", observed_at=datetime(2026, 11, 29, 15, 29, tzinfo=UTC))
    observation = dataclasses.replace(observation, version=Version("watermark", "2026-11-29 03:12"))
    assert observation.stamp() == "[observed 2026-11-29T15:29Z · warehouse:sales.orders · watermark 2026-11-29 03:12]"
    assert observation.stamp("zh-CN") == "[读取于 2026-11-29T15:29Z · warehouse:sales.orders · 水位 2026-11-29 03:12]"


@given(observations)
def test_a_stamp_is_one_line_whatever_the_source_is_called(observation):
    stamp = observation.stamp()
    assert len(stamp) < 350 and stamp.isprintable()


def test_the_time_of_an_observation_is_kept_as_utc():
    away = datetime(2026, 11, 30, 9, 5, tzinfo=timezone(8 * HOUR))
    assert seen(observed_at=away).observed_at == NOW and seen(observed_at=away).observed_at.tzinfo is UTC


@pytest.mark.parametrize("name", ["", "a\nb", "a\x00", "x" * 2001, "\ud800", None, 5])
def test_a_name_that_is_no_source_is_refused(name):
    with pytest.raises(Invalid):
        seen(name)


def test_a_long_source_has_a_ref_that_a_store_takes():
    assert source_ref("a") == "source:a"
    long = source_ref("https://example.com/" + "x" * 1000)
    assert model.check_name(long, "ref") == long and long != source_ref("https://example.com/" + "x" * 1001)


# Versions


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "a"),
        (17, "17"),
        (1.5, "1.5"),
        (datetime(2026, 11, 30, 9, 5, tzinfo=timezone(8 * HOUR)), "2026-11-30 01:05:00+00:00"),
        ({"b": 1, "a": [2]}, '{"a":[2],"b":1}'),
        (b"x", "sha256:2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"),
    ],
)
def test_a_version_is_made_of_any_plain_value(value, text):
    assert Version.of(value).value == text


@pytest.mark.parametrize("value", [None, float("nan"), object(), {1: object()}, {"a": float("inf")}])
def test_what_names_no_state_is_no_version(value):
    with pytest.raises(Invalid):
        Version.of(value)


@given(st.text(max_size=2000), st.text(max_size=2000))
def test_different_texts_are_different_versions_however_long(a, b):
    assert Version.of(a).matches(Version.of(b)) is (a == b)


def test_versions_of_different_kinds_are_not_compared():
    assert Version("etag", "1").matches(Version("sha256", "1")) is None


def test_a_hint_is_no_part_of_a_version():
    assert Version("sha256", "1", "x") == Version("sha256", "1", "y")


# The check


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Version("value", "1"), "current"),
        (Version("value", "2"), "changed"),
        (Version("etag", "1"), "unverifiable"),
        (Gone(), "gone"),
        (Denied(), "denied"),
        (Unanswered("busy"), "unverifiable"),
        (None, "unverifiable"),
        (object(), "unverifiable"),
        (float("nan"), "unverifiable"),
    ],
)
def test_each_answer_has_its_outcome(answer, expected):
    assert outcome(seen(), sources(a=answer)) == expected


@pytest.mark.parametrize(
    ("max_age", "answer", "expected"),
    [
        (HOUR / 2, Version("value", "1"), "current"),  # the probe proves it, whatever its age
        (HOUR / 2, Version("value", "2"), "changed"),
        (HOUR * 0.9, Unanswered(), "expired"),
        (HOUR / 2, Version("etag", "1"), "expired"),
        (2 * HOUR, Unanswered(), "unverifiable"),  # a lifetime does not stand in for a probe that failed
    ],
)
def test_a_reading_expires_only_when_nothing_proves_it(max_age, answer, expected):
    assert outcome(seen(max_age=max_age), sources(a=answer)) == expected


def test_a_reading_without_a_version_holds_for_its_declared_lifetime():
    assert outcome(seen(version=None, max_age=2 * HOUR), Sources()) == "current"
    assert outcome(seen(version=None, max_age=HOUR / 2), Sources()) == "expired"
    assert outcome(seen(version=None), Sources()) == "unverifiable"


def test_a_reading_from_the_future_is_not_taken_to_be_fresh():
    assert outcome(seen(version=None, max_age=HOUR, observed_at=NOW + HOUR), Sources()) == "unverifiable"


def test_the_age_of_an_imported_reading_is_judged_by_its_claimed_time():
    imported = seen(version=None, max_age=HOUR, observed_at=NOW - 3 * HOUR, stored_at=NOW)
    assert outcome(imported, Sources()) == "expired"


def test_a_source_that_nobody_registered_is_unverifiable_with_the_reason():
    (finding,) = check([seen("nowhere")], Sources(), now=NOW)
    assert (finding.outcome, finding.reason) == ("unverifiable", "nobody said how to look at this source")


def test_the_check_comes_back_in_time_although_probes_hang_forever():
    stop = threading.Event()
    registry = Sources()
    registry.register("hung:", lambda: stop.wait(60))
    registry.register("quick", lambda: Version("value", "1"))
    hung = [seen(f"hung:{i}") for i in range(3 * THREADS_MAX)]
    before = time.monotonic()
    findings = check([*hung, seen("quick")], registry, budget=timedelta(seconds=0.4), now=NOW)
    taken = time.monotonic() - before
    stop.set()
    assert taken < 1.5
    assert findings[-1].outcome == "current"
    assert {f.outcome for f in findings[:-1]} == {"unverifiable"}


def test_a_quick_source_is_not_starved_by_hung_ones_of_its_own_probe():
    stop = threading.Event()

    def probe(source):
        return Version("value", "1") if source.endswith("quick") else stop.wait(60)

    registry = Sources()
    registry.register("db:", probe)
    found = [*(seen(f"db:{i}") for i in range(THREADS_MAX)), seen("db:quick")]
    findings = check(found, registry, budget=timedelta(seconds=0.4), now=NOW)
    stop.set()
    assert findings[-1].outcome == "current"


def test_hanging_probes_use_a_bounded_number_of_threads_and_others_recover():
    stop = threading.Event()
    registry = Sources()
    registry.register("hung:", lambda: stop.wait(60))
    registry.register("quick", lambda: Version("value", "1"))
    for round_ in range(12):
        check(
            [seen(f"hung:{round_}:{i}") for i in range(THREADS_MAX)], registry, budget=timedelta(seconds=0.05), now=NOW
        )
    probing = [t for t in threading.enumerate() if t.name == "segue-probe"]
    assert len(probing) <= 128
    assert outcome(seen("quick"), registry) == "unverifiable"
    stop.set()
    for thread in probing:
        thread.join()
    assert outcome(seen("quick"), registry) == "current"


@pytest.mark.parametrize(
    "error", [ValueError("password=hunter2"), KeyboardInterrupt(), SystemExit(1), RecursionError()]
)
def test_what_a_probe_throws_is_a_finding_that_tells_no_secret(error):
    def throws():
        raise error

    (finding,) = check([seen()], sources(a=throws), now=NOW)
    assert finding.outcome == "unverifiable"
    assert type(error).__name__ in finding.reason and "hunter2" not in finding.reason


def test_our_own_errors_tell_the_next_step():
    def throws():
        raise MissingExtra("world", "httpx")

    (finding,) = check([seen()], sources(a=throws), now=NOW)
    assert "pip install" in finding.reason


def test_a_megabyte_of_answer_is_folded_and_a_megabyte_of_reason_is_cut():
    assert outcome(seen(version=Version.of("x" * 10**6).value), sources(a="x" * 10**6)) == "current"
    assert outcome(seen(version=Version.of("x" * 10**6).value), sources(a="x" * 10**6 + "y")) == "changed"
    (finding,) = check([seen()], sources(a=Gone("why " * 10**6)), now=NOW)
    assert len(finding.reason) <= 160


def test_an_async_probe_is_awaited_off_the_callers_loop():
    async def look_up():
        await asyncio.sleep(0)
        return Version("value", "1")

    async def main():
        return await asyncio.to_thread(check, [seen()], sources(a=look_up), now=NOW)

    assert asyncio.run(main())[0].outcome == "current"


def test_a_source_is_looked_at_once_for_all_its_readings():
    looked = []
    registry = sources(a=lambda: looked.append(1) or Version("value", "2"))
    found = [seen(version="1", seq=1, tool="x"), seen(version="2", seq=2, tool="y"), seen(version="2", seq=3, tool="z")]
    assert [f.outcome for f in check(found, registry, now=NOW)] == ["changed", "current", "current"]
    assert len(looked) == 1


def test_a_probe_is_handed_the_newest_version_that_was_seen():
    found = [seen(version="2", seq=2, tool="y"), seen(version="1", seq=1, tool="x"), seen(version="3", seq=3, tool="z")]
    told = check(found, sources(a=lambda seen: seen), now=NOW)
    assert [f.outcome for f in told] == ["changed", "changed", "current"]


def test_probes_run_at_the_same_time():
    meeting = threading.Barrier(8, timeout=5)
    registry = Sources()
    registry.register("a:", lambda: meeting.wait() is None or Version("value", "1"))
    findings = check([seen(f"a:{i}") for i in range(8)], registry, budget=timedelta(seconds=5), now=NOW)
    assert {f.outcome for f in findings} == {"current"}


def test_the_probe_looks_as_the_resuming_principal():
    rights = {"lin": Version("value", "1"), "wang": Denied()}
    registry = sources(a=lambda principal: rights[principal])
    assert outcome(seen(principal="lin"), registry, principal="wang") == "denied"


def test_500_readings_are_checked_in_little_more_than_the_probes_take():
    registry = Sources()
    registry.register("a:", lambda: Version("value", "1"))
    before = time.monotonic()
    findings = check([seen(f"a:{i}") for i in range(500)], registry, now=NOW)
    assert time.monotonic() - before < 1.0
    assert {f.outcome for f in findings} == {"current"}


def test_one_source_is_looked_at_before_a_write():
    assert look("a", sources(a=Version("value", "7"))) == Version("value", "7")
    assert isinstance(look("b", Sources()), Unanswered)


# Which probe


def test_an_exact_name_goes_before_a_prefix_and_a_longer_before_a_shorter():
    registry = sources(**{"db:*": "far", "db:sales.*": "near", "db:sales.orders": "exact", "git:": "git"})
    found = {name: look(name, registry) for name in ("db:x", "db:sales.x", "db:sales.orders", "git:main")}
    assert [v.value for v in found.values()] == ["far", "near", "exact", "git"]
    assert registry.find("database") is None


def test_files_are_looked_at_only_where_it_was_allowed(tmp_path):
    (tmp_path / "a.csv").write_text("1")
    assert Sources().find("file:a.csv") is None
    assert isinstance(look("file:a.csv", Sources(roots=[tmp_path])), Version)
    assert isinstance(look("file:/etc/passwd", Sources(roots=[tmp_path])), Unanswered)


def test_what_is_no_probe_is_refused_when_it_is_registered():
    with pytest.raises(Invalid):
        Sources().register("a", 5)


@pytest.mark.parametrize("name", worlds.WORLDS)
def test_each_kind_of_source_is_told_current_changed_and_gone(name, tmp_path):
    with worlds.world_named(name, tmp_path) as world:
        registry = Sources()
        registry.register(world.source, world.probe)
        observation = Observation(world.source, look(world.source, registry))
        told = [check([observation], registry)[0].outcome]
        world.change()
        told.append(check([observation], registry)[0].outcome)
        world.remove()
        told.append(check([observation], registry)[0].outcome)
        assert told == ["current", "changed", "gone"]


@pytest.mark.parametrize("name", worlds.CUTTING)
def test_each_kind_of_source_that_cannot_be_reached_is_unverifiable_or_expired(name, tmp_path):
    with worlds.world_named(name, tmp_path) as world:
        registry = Sources()
        registry.register(world.source, world.probe)
        version = look(world.source, registry)
        found = [Observation(world.source, version), Observation(world.source, version, max_age=HOUR)]
        with world.cut_off():
            told = [f.outcome for f in check(found, registry, now=datetime.now(UTC) + 2 * HOUR)]
        assert told == ["unverifiable", "expired"]


# Which readings count


def test_a_later_reading_with_the_same_tool_and_arguments_supersedes_an_earlier_one():
    readings = [
        seen("a", "1", tool="q", arguments={"x": 1, "y": 2}),
        seen("a", "2", tool="q", arguments={"y": 2, "x": 1}),
        seen("a", "2", tool="q", arguments={"x": 9}),
    ]
    found = live(reversed([entry(i + 1, o.body()) for i, o in enumerate(readings)]))
    assert [o.seq for o in found.observations] == [3, 2]
    assert [o.seq for o in live([entry(2, readings[1].body()), entry(1, readings[2].body())], by="source")[0]] == [2]


def test_a_reading_carries_its_seq_and_store_time():
    (found,) = live([entry(7, seen().body(), at=NOW)]).observations
    assert (found.seq, found.stored_at) == (7, NOW)


def test_only_so_many_readings_are_checked_and_the_rest_is_counted():
    entries = [entry(i, seen(f"s{i % 30}").body()) for i in range(100, 0, -1)]
    found = live(entries, limit=20)
    assert [o.seq for o in found.observations] == list(range(100, 80, -1))
    assert (found.left_out, found.is_complete) == (10, True)


def test_a_million_readings_are_not_all_looked_through():
    looked = 0

    def endless():
        nonlocal looked
        body = codec.encode(seen().body())
        for i in range(10**6, 0, -1):
            looked += 1
            yield entry(i, body)

    found = live(endless(), scan=1000)
    assert looked <= 1001 and not found.is_complete and len(found.observations) == 1


def test_records_that_are_not_understood_are_counted_and_hollow_ones_passed_over():
    entries = [
        entry(4, {"source": 5}),
        entry(3, None),
        entry(2, b"\x00torn", format="raw"),
        entry(1, seen().body()),
    ]
    found = live(entries)
    assert (len(found.observations), found.unreadable) == (1, 2)


def test_before_a_cut_only_what_its_summary_rests_on_counts():
    entries = [entry(i, seen(f"s{i}").body()) for i in (5, 4, 3, 2, 1)]
    assert [o.seq for o in live(entries, after=3).observations] == [5, 4]
    assert [o.seq for o in live(entries, after=3, keep=["e2"]).observations] == [5, 4, 2]


def write(seq, source, *, before=None, after="9", phase="completed"):
    effect = Effect(
        f"w{seq}",
        "publish",
        phase,
        source,
        before=before and Version("value", before),
        version=after and Version("value", after),
    )
    return entry(seq, effect.body(), kind="effect")


@pytest.mark.parametrize(
    ("later", "now"),
    [
        ([write(2, "a", before="1")], "9"),  # the write rested on the reading
        ([write(2, "a")], "9"),  # nobody compared
        ([write(2, "a", before="5")], "1"),  # somebody else had changed it in between
        ([write(2, "b", before="1")], "1"),  # another source
        ([write(2, "a", before="1", phase="failed")], "1"),
        ([write(2, "a", before="1", after=None)], "1"),  # nobody knows what it made
        ([write(3, "a", before="9", after="10"), write(2, "a", before="1")], "10"),
        ([write(3, "a", before="9", after="10"), write(2, "a", before="5")], "1"),
    ],
)
def test_own_writes_refresh_the_readings_before_them(later, now):
    (found,) = live([*later, entry(1, seen("a", "1").body())]).observations
    assert found.version.value == now


def test_what_a_session_knows_of_a_source_is_its_newest_reading_or_finished_write():
    entries = [
        entry(6, seen("a", None).body()),
        entry(5, seen("b", "5").body()),
        write(4, "a", after="4", phase="failed"),
        write(3, "a", after="3"),
        entry(2, {"source": 5}),
        entry(1, seen("a", "1").body(), run="r"),
    ]
    assert known(entries, "a")[:2] == (Version("value", "3"), 3)
    assert known(entries[4:], "a") == (Version("value", "1"), 1, "r")
    assert known(entries, "c") is None


def test_a_reading_after_a_write_is_as_it_was_read():
    (found,) = live([entry(2, seen("a", "1").body()), write(1, "a")]).observations
    assert found.version.value == "1"


def test_a_write_before_the_cut_refreshes_a_reading_that_the_summary_rests_on():
    (found,) = live([write(2, "a"), entry(1, seen("a").body())], after=3, keep=["e1"]).observations
    assert found.version.value == "9"


@settings(max_examples=1000, deadline=None)
@given(st.integers(0, 2**32))
def test_random_histories_raise_no_false_alarm_and_miss_no_change(seed):
    """A world of counters, a session that reads and writes them, others that write them: compared with a model."""
    dice = random.Random(seed)
    world = {name: 0 for name in "abc"}
    known: dict[tuple[str, int], int] = {}  # what the session knows of each reading of each source
    entries = []
    for seq in range(1, dice.randint(2, 30)):
        name = dice.choice("abc")
        act = dice.choice(["read", "read", "guarded write", "write of another"])
        if act == "read":
            how = dice.randint(1, 2)
            known[name, how] = world[name]
            entries.append(entry(seq, seen(name, str(world[name]), tool="q", arguments=how).body()))
        elif act == "write of another":
            world[name] += 1
        else:
            before, world[name] = world[name], world[name] + 1
            known |= {key: world[name] for key, value in known.items() if key[0] == name and value == before}
            entries.append(write(seq, name, before=str(before), after=str(world[name])))
    findings = check(live(reversed(entries)).observations, sources(**{n: str(v) for n, v in world.items()}), now=NOW)
    told = {(f.observation.source, f.observation.arguments): f.outcome for f in findings}
    assert told == {key: "current" if value == world[key[0]] else "changed" for key, value in known.items()}


# Effects


effects = st.builds(
    Effect,
    id=st.uuids().map(str),
    name=printable,
    phase=st.sampled_from(["started", "completed", "failed"]),
    source=st.none() | printable,
    key=st.none() | printable,
    result=json_values,
    before=st.none() | versions,
    version=st.none() | versions,
)


@given(effects)
def test_an_effect_comes_back_from_its_body(effect):
    assert Effect.from_body(codec.decode(codec.encode(effect.body()))) == effect


@pytest.mark.parametrize(
    "body", [None, {}, {"effect": "x"}, {"effect": "x", "name": "n", "phase": "maybe"}, {"effect": 5, "name": "n"}]
)
def test_a_body_that_is_no_effect_is_refused_by_type(body):
    with pytest.raises(Invalid):
        Effect.from_body(body)


def test_an_effect_without_an_end_has_an_unknown_outcome():
    effect = Effect("x", "pay", source="bank", key="k")
    start, end = entry(1, effect.body(), "effect"), entry(2, effect.then("completed").body(), "effect")
    assert [e.key for e in open_effects([start])] == ["k"]
    assert open_effects([end, start]) == open_effects([start, end]) == ()
    assert open_effects([start, entry(2, effect.then("failed").body(), "effect")]) == ()


def test_what_a_living_run_has_begun_is_under_way():
    start = entry(1, Effect("x", "pay").body(), "effect", run="r1")
    assert open_effects([start], running=["r1"]) == ()
    assert len(open_effects([start], running=["r2"])) == 1


def test_the_same_call_gets_the_same_key_and_two_calls_get_two():
    one = effect_key("s", name="pay", source="bank", call="c1")
    assert one == effect_key("s", name="pay", source="bank", call="c1")
    others = {
        effect_key("s", name="pay", source="bank", call="c2"),
        effect_key("t", name="pay", source="bank", call="c1"),
    }
    assert one not in others and len(others) == 2
    assert effect_key("s", name="pay") != effect_key("s", name="pay")


def test_effects_of_others_are_told_in_their_latest_phase_and_own_ones_are_not():
    effect = Effect("x", "publish", source="wiki")
    hits = [
        model.Hit("theirs", entry(2, effect.then("completed").body(), "effect")),
        model.Hit("theirs", entry(1, effect.body(), "effect")),
        model.Hit("mine", entry(1, effect.body(), "effect")),
        model.Hit("theirs", entry(3, seen("wiki").body())),
    ]
    (found,) = effects_of_others(hits, own=["mine"])
    assert (found.session, found.effect.phase) == ("theirs", "completed")


def test_a_finding_comes_back_from_its_facts_and_is_plain_json():
    registry = sources(a=Version("value", "2"), b=Gone("HTTP 404"))
    for finding in check([seen("a", seq=4), seen("b"), seen("c", version=None)], registry, now=NOW):
        facts = json.loads(json.dumps(finding.facts()))
        assert type(finding).from_facts(facts) == finding


def test_digests_of_values_do_not_depend_on_key_order():
    assert ledger.digest_of({"a": 1, "b": [2]}) == ledger.digest_of({"b": [2], "a": 1})
    assert ledger.digest_of("x") == ledger.digest_of(b"x")
    assert ledger.digest_of(object()) is None
