"""Families: whatever is made of sub-agents is found again, and goes when it is to go."""

from __future__ import annotations

import pytest

import segue
from segue.errors import Invalid, NotFound
from segue.family import erase_family, family, fork_family, keep_result


@pytest.fixture(params=["memory", "sqlite", "jsonl"])
def me(request, tmp_path):
    urls = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/a.db", "jsonl": f"jsonl:{tmp_path}/j"}
    with segue.open(urls[request.param]) as db:
        yield db.scope(user="lin")


def user(text):
    return {"role": "user", "content": text}


def model(text):
    return {"role": "assistant", "content": text}


def texts(session):
    return [message["content"] for message in session.messages()]


def readable(session):
    return b"\n".join(entry.body for entry in session.read() if entry.body is not None).decode()


def left(me):
    return [info.id for info in me.iterate(unlisted=True)]


def ids(sessions):
    return [one.id for one in sessions]


# Forks of families


def test_the_forks_of_children_are_the_family_of_the_fork_and_go_with_it(me):
    parent = me.create()
    child = parent.child("k")
    child.append(user("PRIVATE"), model("a"))
    made, forks = fork_family(me, parent)
    assert ids(family(me, made)) == [made.id, forks[child.id].id]
    assert ids(family(me, parent)) == [parent.id, child.id]
    erase_family(me, parent)
    assert texts(forks[child.id]) == ["PRIVATE", "a"]
    erase_family(me, made)
    assert left(me) == []


def test_forks_of_forks_of_families_are_found_from_their_own_side_alone(me):
    parent = me.create()
    old = parent.child("old")
    first, of_first = fork_family(me, parent)
    of_first[old.id].append(user("only here"))
    new = first.child("new")
    second, of_second = fork_family(me, first)
    assert set(of_second) == {of_first[old.id].id, new.id}
    assert set(ids(family(me, second))) == {second.id, *ids(of_second.values())}
    assert texts(of_second[of_first[old.id].id]) == ["only here"]
    for one in (parent, first, second):
        erase_family(me, one)
    assert left(me) == []


def test_a_bare_fork_has_no_family(me):
    parent = me.create()
    parent.child("k")
    made, _ = fork_family(me, parent)
    bare = parent.fork()
    assert ids(family(me, bare)) == [bare.id]
    assert len(list(family(me, made))) == 2


def test_a_fork_of_a_family_can_be_asked_for_again_and_makes_what_is_missing(me):
    parent = me.create()
    one, two, three = (parent.child(name) for name in "abc")
    made, forks = fork_family(me, parent, id="f")
    one.append(user("later"))
    forks[two.id].erase()
    three.erase()
    again, there = fork_family(me, parent, made.info.base, id="f")
    assert again.id == made.id and ids(there.values()) == [forks[one.id].id]
    assert texts(there[one.id]) == []


def test_only_children_made_up_to_there_are_forked(me):
    parent = me.create()
    early = parent.child("early")
    at = parent.refresh().head
    parent.child("late")
    made, forks = fork_family(me, parent, at)
    assert list(forks) == [early.id] and made.refresh().head == at


# Ephemeral children


def rolled_back(child):
    run = child.run()
    run.append(model("SECRET half"))
    with child.run(policy="rollback") as run:
        run.append(user("SECRET again"))


def cut(child):
    body = {"upto": child.refresh().head, "summary": user("SECRET summary"), "reason": "test"}
    child.append(body, kind="cut", format="segue", refs=("cut",))


def taken_back(child):
    seq = child.append(user("SECRET slip")).head
    child.append({"seqs": [seq]}, kind="retract", format="segue", refs=("retract",))


def masked(child):
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {}}]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "SECRET"}]}
    seq = child.append(call, result).head
    body = {"results": [{"seq": seq, "call": "t", "text": "SECRET is superseded"}]}
    child.append(body, kind="mask", format="segue", refs=("mask", "retract"))


def nothing(child):
    pass


BEFORE = [rolled_back, cut, taken_back, masked, nothing]


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("after", [cut, taken_back, nothing])
def test_of_an_ephemeral_child_only_the_answer_stays_whatever_it_went_through(me, before, after):
    child = me.create().child("k")
    child.append(user("SECRET question"), model("SECRET first"))
    before(child)
    child.append(model("the answer"))
    after(child)
    assert keep_result(child) > 0
    assert readable(child) == '{"role":"assistant","content":"the answer"}'
    assert texts(child)[-1] == "the answer"
    assert keep_result(child) == 0


@pytest.mark.parametrize("before", BEFORE)
def test_of_an_ephemeral_fork_only_the_answer_and_what_it_shares_stay(me, before):
    parent = me.create()
    child = parent.child("k")
    child.append(user("shared"), model("shared too"))
    _, forks = fork_family(me, parent)
    forked = forks[child.id]
    taken = forked.refresh().head
    forked.append({"seqs": [taken]}, kind="retract", format="segue", refs=("retract",))
    before(forked)
    forked.append(user("SECRET question"), model("the answer"))
    keep_result(forked)
    assert texts(forked) == ["shared", "the answer"]
    assert texts(child) == ["shared", "shared too"]
    assert "question" not in readable(forked) and "summary" not in readable(forked)


def test_an_answer_that_was_taken_back_is_not_the_one_to_keep(me):
    child = me.create().child("k")
    child.append(model("the answer"))
    seq = child.append(model("SECRET slip")).head
    child.append({"seqs": [seq]}, kind="retract", format="segue", refs=("retract",))
    keep_result(child)
    assert texts(child)[-1] == "the answer" and "SECRET" not in readable(child)
    other = me.create().child("k")
    other.append(model("SECRET slip"))
    other.append({"seqs": [1]}, kind="retract", format="segue", refs=("retract",))
    with pytest.raises(Invalid, match="no answer"):
        keep_result(other)


def test_an_ephemeral_childs_own_children_are_still_found_and_erased(me):
    parent = me.create()
    child = parent.child("k")
    grandchild = child.child("g")
    grandchild.append(user("PRIVATE"))
    child.append(model("the answer"))
    keep_result(child)
    assert ids(family(me, parent)) == [parent.id, child.id, grandchild.id]
    erase_family(me, parent)
    with pytest.raises(NotFound):
        me.open(grandchild.id)
