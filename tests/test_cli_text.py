"""Stored text on a terminal: harmless, aligned, cut, and readable whatever shape it has."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.cli import bodies, screen, text
from segue.cli.screen import as_json
from segue.errors import Invalid

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


@given(st.text())
def test_no_text_steers_a_terminal(given):
    shown = text.safe(given)
    assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Zl", "Zp", "Cs")]
    assert not set(shown) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c\ufeff")


def test_what_would_steer_is_shown_as_an_escape():
    assert text.safe("a\x1b[31mb\x9bc\u202ed") == "a\\x1b[31mb\\x9bc\\u202ed"


def test_text_of_every_script_stays_as_it_is():
    for words in ("华东八月", "שלום", "می‌خواهم", "हिन्दी", "👩‍👩‍👧", "café"):
        assert text.safe(words) == words


def test_one_line_has_no_line_breaks():
    assert text.one_line("a\r\nb\t c\u2028d\x0b") == "a b c d"


@given(st.text())
def test_json_lines_mean_the_same_and_steer_no_terminal(given):
    import json

    line = as_json({"t": given})
    assert json.loads(line) == {"t": given}
    assert line == text.safe(line)


def test_wide_characters_take_two_cells():
    assert [text.width(t) for t in ("ab", "华东", "ｆ", "é", "e\u0301", "한국", "❤\ufe0f")] == [2, 4, 2, 1, 1, 4, 2]


@given(st.text(), st.integers(1, 30))
def test_cut_text_fits(given, cells):
    shown = text.cut(text.one_line(given), cells)
    assert text.width(shown) <= cells


def test_cut_text_says_so():
    assert text.cut("华东八月销售额", 7) == "华东八…"
    assert text.cut("short", 5) == "short"


@given(st.text(alphabet="ab 华东，。—x", max_size=200), st.integers(4, 40))
def test_wrapped_lines_fit_and_lose_nothing_but_spaces(given, cells):
    rows = text.wrap(given, cells)
    assert max(map(text.width, rows)) <= max(cells, text.width(given) if text.width(given) <= cells else 0)
    assert "".join(rows).replace(" ", "") == given.replace(" ", "")


@given(st.lists(st.tuples(st.text(alphabet="ab 华东，—", max_size=30), st.sampled_from("xy"))), st.integers(4, 40))
def test_rows_of_a_line_fit_and_every_word_keeps_its_style(parts, cells):
    rows = list(screen._rows(parts, cells))
    assert all(text.width("".join(part for part, _ in row).rstrip()) <= cells for row in rows)

    def inked(parts):
        return [(char, style) for part, style in parts for char in part if char != " "]

    assert [one for row in rows for one in inked(row)] == inked(parts)


def test_a_wrapped_line_keeps_its_indentation():
    assert text.wrap("    one two three", 12) == ["    one two", "    three"]


def test_closing_punctuation_does_not_begin_a_line():
    assert text.wrap("华东八月，销售", 8) == ["华东八", "月，销售"]


def test_padded_text_aligns():
    assert {text.width(text.pad(t, 10)) for t in ("华东", "ab", "é")} == {10}
    assert text.pad("7", 3, right=True) == "  7"


@pytest.mark.parametrize(
    ("passed", "shown"),
    [
        (timedelta(seconds=20), "just now"),
        (timedelta(minutes=59), "59 min ago"),
        (timedelta(hours=18, minutes=40), "18 h ago"),
        (timedelta(hours=47), "47 h ago"),
        (timedelta(days=3), "3 d ago"),
        (timedelta(minutes=-5), "in 5 min"),
    ],
)
def test_the_time_that_passed_is_told_in_one_unit(passed, shown):
    assert text.ago(NOW - passed, NOW) == shown


def test_local_times_are_as_short_as_they_are_clear(monkeypatch):
    import time

    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    try:
        told = [text.clock(NOW - timedelta(days=d, hours=h), NOW) for d, h in ((0, 1), (1, 0), (40, 0), (400, 0))]
        far = text.clock(NOW + timedelta(days=1), NOW)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert told == ["19:00", "Sat 20:00", "20 Oct 20:00", "2025-10-25"]
    assert far == "30 Nov 20:00"


def test_counts_are_short():
    assert [text.short(n) for n in (0, 950, 8_240, 31_204, 1_250_000)] == ["0", "950", "8.2k", "31k", "1.2M"]
    assert [text.plural(1, "entry", "entries"), text.plural(2_310, "entry", "entries")] == ["1 entry", "2,310 entries"]


def test_durations_and_times_are_understood():
    assert text.span("30d") == timedelta(days=30)
    assert text.span("90min") == timedelta(minutes=90)
    assert text.moment("12h", NOW) == NOW - timedelta(hours=12)
    assert text.moment("2026-11-01T10:00+08:00", NOW) == datetime(2026, 11, 1, 2, tzinfo=UTC)
    for wrong in ("soon", "-3d", "3", "3 years", "9999999d"):
        with pytest.raises(Invalid):
            text.span(wrong)
        with pytest.raises(Invalid):
            text.moment("x" + wrong, NOW)


# Bodies


def test_anthropic_messages_are_read():
    message = {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "x"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "t1", "name": "query", "input": {"sql": "SELECT 1", "n": 2}},
        ],
    }
    hidden, words, call = bodies.parts(message)
    assert (hidden, words) == (bodies.Hidden("thinking", "hm"), bodies.Text("I look."))
    assert bodies.call_text(call) == 'query(sql: "SELECT 1", n: 2)'
    answer = {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": "t1",
                "content": [
                    {"type": "text", "text": "one"},
                    {"type": "image", "source": {"media_type": "image/png", "data": "A" * 4000}},
                ],
            }
        ],
    }
    assert bodies.parts(answer) == [bodies.Result("t1", "one\n[image image/png, 3 kB]", False)]


def test_openai_items_are_read():
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"q": "x"}'}
    assert bodies.call_text(bodies.parts(call)[0]) == 'f(q: "x")'
    assert bodies.parts({"type": "function_call_output", "call_id": "c1", "output": "ok"}) == [
        bodies.Result("c1", "ok", False)
    ]
    reasoning = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "because"}]}
    assert bodies.parts(reasoning) == [bodies.Hidden("reasoning", "because")]
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}
    assert bodies.parts(item) == [bodies.Text("hi")]
    held = {"type": "mcp_call", "id": "m", "name": "g", "arguments": "{}", "output": "done", "error": None}
    assert bodies.parts(held) == [bodies.Call("g", "{}", "m"), bodies.Result("m", "done", False)]


def test_chat_messages_are_read():
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "not json"}}],
    }
    assert bodies.parts(call) == [bodies.Call("f", "not json", "c1")]
    assert bodies.call_text(bodies.parts(call)[0]) == "f(not json)"
    assert bodies.parts({"role": "tool", "tool_call_id": "c1", "content": "ok"}) == [bodies.Result("c1", "ok", False)]
    assert bodies.parts({"role": "assistant", "content": None, "refusal": "no"}) == [bodies.Text("no")]


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["role", "type", "content", "text", "tool_calls", "function", "name", "input", "arguments",
                         "output", "source", "data", "summary", "error", "url", "image_url"]), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(_json)
def test_no_stored_value_makes_reading_fail(value):
    for part in bodies.parts(value):
        assert isinstance(part, (bodies.Text, bodies.Call, bodies.Result, bodies.Hidden, bodies.Other))
        if isinstance(part, bodies.Call):
            bodies.call_text(part)
    bodies.role(value)
