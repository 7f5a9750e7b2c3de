"""Masking: in the view a stale result says so, in the log it stays; a new epoch; refused where thinking is bound."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

import segue
from segue import edits
from segue.errors import Invalid, MaskRefused, ViewInvalid
from segue.guard import calling, reads, using
from segue.ledger import Observation, Version
from segue.view import ViewSpec
from segue.world import Denied, Gone, Sources

QUESTION = {"role": "user", "content": "How much?"}
FORMATS = ("anthropic", "openai.responses", "openai.chat")


class Talk:
    """A session whose tool reads one source, in any of the formats."""

    def __init__(self, me, format="anthropic", store=None):
        self.me, self.format = me, format
        self.session = me.create(format=format)
        self.version = "1"
        self.sources = Sources()
        self.sources.register(
            "stock:", lambda: Version("value", self.version) if type(self.version) is str else self.version
        )

    def question(self, text="How much?"):
        message = {"role": "user", "content": text}
        return {"type": "message", **message} if self.format == "openai.responses" else message

    def answer(self, text="41"):
        message = {"role": "assistant", "content": text}
        if self.format == "openai.responses":
            return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
        return message

    def call(self, *ids):
        if self.format == "anthropic":
            blocks = [{"type": "tool_use", "id": i, "name": "look", "input": {"name": i}} for i in ids]
            return [{"role": "assistant", "content": blocks}]
        if self.format == "openai.chat":
            function = {"name": "look", "arguments": "{}"}
            calls = [{"id": i, "type": "function", "function": function} for i in ids]
            return [{"role": "assistant", "content": None, "tool_calls": calls}]
        return [{"type": "function_call", "call_id": i, "name": "look", "arguments": "{}"} for i in ids]

    def results(self, **texts):
        if self.format == "anthropic":
            blocks = [{"type": "tool_result", "tool_use_id": i, "content": t} for i, t in texts.items()]
            return [{"role": "user", "content": blocks}]
        if self.format == "openai.chat":
            return [{"role": "tool", "tool_call_id": i, "content": t} for i, t in texts.items()]
        return [{"type": "function_call_output", "call_id": i, "output": t} for i, t in texts.items()]

    def turn(self, *ids, source="stock:{name}", before=()):
        """A question, calls that read the source, their results, an answer."""
        look = reads(source, name="look")(lambda name: f"{name} has 41")
        with self.session.run() as run, using(run, self.sources):
            run.append(self.question())
            run.append(*before, *self.call(*ids))
            texts = {}
            for one in ids:
                with calling(one):
                    texts[one] = look(one)
            run.append(*self.results(**texts))
            run.append(self.answer())

    def come_back(self, **options):
        back = self.me.resume(self.session, sources=self.sources, **{"stale": "mask", **options})
        with back.run() as run:
            run.append(self.question("And now?"))
        return back

    def shown(self):
        return json.dumps(self.session.messages(), ensure_ascii=False)


@pytest.fixture
def db():
    with segue.open("memory:") as opened:
        yield opened


@pytest.fixture
def me(db):
    return db.scope(user="lin")


@pytest.fixture(params=FORMATS)
def talk(me, request):
    return Talk(me, request.param)


def test_a_changed_reading_is_replaced_in_the_view_and_stays_in_the_log(talk):
    talk.turn("c1")
    before = [entry.body for entry in talk.session.history()]
    talk.version = "2"
    talk.come_back()
    shown = talk.shown()
    assert "c1 has 41" not in shown
    assert "[superseded since" in shown and "stock:c1 · version 1 → 2; call look(" in shown
    assert [entry.body for entry in talk.session.history()][: len(before)] == before
    assert '{\\"name\\":\\"c1\\"}) again]' in shown


@pytest.mark.parametrize(
    ("answer", "text"),
    [(Gone(), "does not exist any more"), (Denied(), "may not be read any more")],
)
def test_what_is_gone_or_denied_is_masked_too(me, answer, text):
    talk = Talk(me)
    talk.turn("c1")
    talk.version = answer
    talk.come_back()
    assert text in talk.shown() and "has 41" not in talk.shown()


def test_what_is_unchanged_or_only_old_or_not_verifiable_is_left_as_it_is(db, me):
    talk = Talk(me)
    talk.turn("c1")
    talk.come_back()
    talk.sources = Sources()
    db.engine.store.shift_clock(timedelta(days=2) // timedelta(microseconds=1))
    talk.come_back()
    assert "c1 has 41" in talk.shown() and talk.session.read(kinds=("mask",)) == []


def test_by_default_nothing_is_masked(me):
    talk = Talk(me)
    talk.turn("c1")
    talk.version = "2"
    assert talk.come_back(stale="note").mask is None
    assert "c1 has 41" in talk.shown() and "Changed: stock:c1" in talk.shown()


def test_only_the_stale_one_of_two_results_in_one_message_is_replaced(talk):
    talk.turn("c1", "c2")
    talk.sources.register("stock:c1", lambda: Version("value", "2"))
    talk.come_back()
    assert "c1 has 41" not in talk.shown() and "c2 has 41" in talk.shown()


def test_a_mask_opens_a_new_epoch_within_which_each_view_is_a_prefix_of_the_next(talk):
    talk.turn("c1")
    before = talk.session.view()
    talk.version = "2"
    talk.come_back()
    masked = talk.session.view()
    assert masked.epoch != before.epoch
    talk.turn("c2")
    later = talk.session.view()
    assert later.epoch == masked.epoch
    assert later.bodies[: len(masked.bodies)] == masked.bodies


def test_the_view_of_a_head_before_the_mask_is_what_it_was(me):
    talk = Talk(me)
    talk.turn("c1")
    before = talk.session.view()
    talk.version = "2"
    talk.come_back()
    assert talk.session.view(upto=before.head).bodies == before.bodies


def test_a_reading_is_masked_once_and_its_bytes_do_not_change_with_a_later_change(me):
    talk = Talk(me)
    talk.turn("c1")
    for version in ("2", "3", "4"):
        talk.version = version
        talk.come_back()
    assert len(talk.session.read(kinds=("mask",))) == 1
    assert "version 1 → 2" in talk.shown()


def test_what_was_read_anew_is_masked_when_that_changes(me):
    talk = Talk(me)
    talk.turn("c1")
    talk.version = "2"
    talk.come_back()
    look = reads("stock:c1", name="look")(lambda name: "42 now")
    with talk.session.run() as run, using(run, talk.sources), calling("d1"):
        run.append(*talk.call("d1"))
        run.append(*talk.results(d1=look("c1")))
        run.append(talk.answer())
    talk.version = "3"
    talk.come_back()
    assert "has 41" not in talk.shown() and "42 now" not in talk.shown()
    assert talk.shown().count("[superseded since") == 2


def test_a_fork_inherits_the_masks_up_to_its_point_and_the_parent_keeps_none_of_the_forks(me):
    talk = Talk(me)
    talk.turn("c1")
    early = talk.session.fork()
    talk.version = "2"
    talk.come_back()
    late = talk.session.fork()
    assert "has 41" in json.dumps(early.messages()) and "has 41" not in json.dumps(late.messages())


def test_a_mask_is_taken_back_by_a_retraction(me):
    talk = Talk(me)
    talk.turn("c1")
    before = talk.session.view()
    talk.version = "2"
    talk.come_back()
    (mask,) = talk.session.read(kinds=("mask",))
    talk.session.append({"seqs": [mask.seq]}, kind="retract", format="segue", refs=("retract",))
    after = talk.session.view()
    assert after.bodies[: len(before.bodies)] == before.bodies
    talk.come_back()
    assert len(talk.session.read(kinds=("mask",))) == 2 and "has 41" not in talk.shown()


def test_a_mask_cannot_be_hollowed_for_it_would_show_again_what_it_hides(me):
    talk = Talk(me)
    talk.turn("c1")
    talk.version = "2"
    talk.come_back()
    (mask,) = talk.session.read(kinds=("mask",))
    with pytest.raises(Invalid, match="is a mask"):
        talk.session.hollow(mask.seq)


def test_a_reading_recorded_without_its_call_is_counted_as_left(me):
    talk = Talk(me)
    with talk.session.run() as run:
        run.append(QUESTION)
        run.observe("stock:x", "1")
    talk.version = "2"
    back = talk.come_back()
    assert (back.mask.results, back.mask.left) == ((), 1)
    assert talk.session.read(kinds=("mask",)) == []


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_reading_whose_call_nobody_told_is_found_by_the_line_that_it_left(talk, language):
    look = reads("stock:{name}", name="look")(lambda name: f'{name} has "41"')
    with talk.session.run() as run, using(run, talk.sources, language=language):
        texts = {f"c{n}": look(f"s{n}") for n in (1, 2)}
        run.append(talk.question(), *talk.call("c0", *texts), *talk.results(c0="s1 has 40", **texts), talk.answer())
    talk.version = "2"
    back = talk.come_back()
    assert ([call for _, call, _ in back.mask.results], back.mask.left) == (["c1", "c2"], 0)
    assert "s1 has 40" in talk.shown() and "s1 has \\" not in talk.shown()


def test_of_two_readings_by_one_call_each_that_changed_is_named(me):
    talk = Talk(me)
    with talk.session.run() as run:
        run.append(QUESTION, *talk.call("c1"))
        for source in ("stock:a", "stock:b", "else:c"):
            run.observe(source, "1", call="c1")
        run.append(*talk.results(c1="a and b and c"), talk.answer())
    talk.version = "2"
    talk.come_back()
    assert "a and b" not in talk.shown() and "stock:a ·" in talk.shown() and "stock:b ·" in talk.shown()


def test_of_two_calls_with_one_id_the_result_behind_the_reading_is_masked(me):
    talk = Talk(me)
    talk.turn("c1")
    talk.session.append(QUESTION, *talk.call("c1"), *talk.results(c1="another matter"), talk.answer())
    talk.version = "2"
    talk.come_back()
    assert "c1 has 41" not in talk.shown() and "another matter" in talk.shown()


# Where it is refused


SIGNED = {
    "anthropic": lambda: {
        "role": "assistant",
        "content": [{"type": "thinking", "thinking": "", "signature": "s"}, {"type": "text", "text": "41"}],
    },
    "openai.chat": lambda: {"role": "assistant", "content": "41", "thinking_blocks": [{"signature": "s"}]},
}


def think(talk):
    """The model thinks, then speaks."""
    if talk.format == "openai.responses":
        reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
        return [reasoning, talk.answer()]
    return [SIGNED[talk.format]()]


def test_thinking_behind_a_stale_reading_forbids_the_mask_and_the_note_is_told_all_the_same(talk):
    talk.turn("c1")
    with talk.session.run() as run:
        run.append(talk.question(), *think(talk))
    before = talk.session.view()
    talk.version = "2"
    back = talk.come_back()
    assert isinstance(back.mask_refused, MaskRefused) and back.mask_refused.reason == "signed-thinking"
    assert back.mask is None and talk.session.read(kinds=("mask",)) == []
    after = talk.session.view()
    assert after.epoch == before.epoch and after.bodies[: len(before.bodies)] == before.bodies
    (note,) = talk.session.read(kinds=("note",))
    assert note.json()["mask_refused"]["reason"] == "signed-thinking" and "Changed: stock:c1" in note.json()["text"]


def test_thinking_before_a_stale_reading_forbids_nothing(talk):
    with talk.session.run() as run:
        run.append(talk.question(), *think(talk))
    talk.turn("c1")
    talk.version = "2"
    assert talk.come_back().mask_refused is None
    assert "has 41" not in talk.shown()


def test_a_summary_takes_the_thinking_away_and_with_it_the_reason_to_refuse(me):
    talk = Talk(me)
    talk.turn("c1")
    with talk.session.run() as run:
        run.append(talk.question(), *think(talk))
    head = talk.session.refresh().head
    talk.session.append({"upto": head, "summary": None}, kind="cut", format="segue", refs=("cut",))
    talk.turn("c2")
    talk.version = "2"
    assert talk.come_back().mask_refused is None
    assert "has 41" not in talk.shown()


def test_a_format_that_segue_cannot_render_is_not_masked(me):
    session = me.create(format="graph")
    observation = Observation("stock:x", Version("value", "1"), call="c1")
    session.append(observation.body(), kind="observation", format="segue", refs=observation.refs)
    sources = Sources()
    sources.register("stock:", lambda: "2")
    refused = me.resume(session, sources=sources, stale="mask").mask_refused
    assert refused.reason == "format" and "stale='note'" in str(refused)


def test_a_word_that_is_neither_note_nor_mask_is_refused(me):
    with pytest.raises(Invalid, match="none of note, mask"):
        me.resume(Talk(me).session, stale="hide")


# From elsewhere


def masked_by_hand(talk, results):
    talk.session.append({"results": results}, kind="mask", format="segue", refs=("mask", "retract"))


def test_a_mask_that_names_nothing_of_the_view_changes_nothing(me):
    talk = Talk(me)
    talk.turn("c1")
    before = talk.session.view()
    masked_by_hand(
        talk,
        [
            {"seq": 1, "call": "c1", "text": "x"},
            {"seq": 10**6, "call": "c1", "text": "x"},
            {"seq": 4, "call": "no", "text": "x"},
        ],
    )
    after = talk.session.view()
    assert (after.bodies, after.epoch) == (before.bodies, before.epoch)


def test_a_mask_that_is_none_is_refused_with_the_way_out(me):
    talk = Talk(me)
    talk.turn("c1")
    masked_by_hand(talk, "everything")
    with pytest.raises(ViewInvalid, match="no mask that Segue can read.*take it back") as refused:
        talk.session.messages()
    assert refused.value.rule == "bad-mask"
    head = talk.session.refresh().head
    talk.session.append({"seqs": [head]}, kind="retract", format="segue", refs=("retract",))
    assert "has 41" in talk.shown()


def test_thinking_made_under_a_mask_is_not_sent_without_it(me):
    talk = Talk(me)
    talk.turn("c1")
    talk.version = "2"
    talk.come_back()
    talk.session.append(*think(talk), talk.question())
    (mask,) = talk.session.read(kinds=("mask",))
    assert '"signature"' in talk.shown()
    talk.session.append({"seqs": [mask.seq]}, kind="retract", format="segue", refs=("retract",))
    assert '"signature"' not in talk.shown()


def test_thinking_made_without_a_mask_is_not_sent_with_one_that_came_from_elsewhere(me):
    talk = Talk(me)
    talk.turn("c1")
    talk.session.append(talk.question(), *think(talk), talk.question())
    seq = next(e.seq for e in talk.session.history() if b"tool_result" in e.body)
    masked_by_hand(talk, [{"seq": seq, "call": "c1", "text": "x"}])
    assert '"signature"' not in talk.shown()


def test_a_window_of_the_newest_turns_is_masked_as_well(me):
    talk = Talk(me)
    talk.turn("c1")
    talk.turn("c2")
    talk.version = "2"
    talk.come_back()
    seen = talk.session.view(ViewSpec("anthropic", last_turns=2))
    assert "has 41" not in json.dumps(seen.messages) and "superseded" in json.dumps(seen.messages)


def test_masks_cost_a_log_without_them_no_lookup(me, monkeypatch):
    talk = Talk(me)
    talk.turn("c1")
    asked = []
    inner = type(talk.session.log).by_ref

    def counted(self, ref, **options):
        asked.append(ref)
        return inner(self, ref, **options)

    monkeypatch.setattr(type(talk.session.log), "by_ref", counted)
    talk.session.messages()
    assert "mask" not in asked


def test_the_kind_is_one_that_segue_gives_a_meaning():
    assert "mask" in segue.model.KINDS and edits.Retracts([]).masks == {}
