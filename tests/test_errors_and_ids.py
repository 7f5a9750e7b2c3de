"""What every error and every id can be relied on for."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

from segue import errors
from segue.model import new_id

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.SegueError)]
VALUES = {"int": 7, "str": "text", "str | None": "text", "float": 1.5, "bool": True}


def made(kind):
    if kind.__init__ is Exception.__init__:
        return kind("what happened, and what to do")
    taken = inspect.signature(kind).parameters.values()
    values = {one.name: VALUES.get(one.annotation, ("a", "b")) for one in taken if one.default is one.empty}
    by_place = [values.pop(one.name) for one in taken if one.name in values and one.kind is one.POSITIONAL_OR_KEYWORD]
    return kind(*by_place, **values)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_crosses_to_another_process_and_back_as_it_was(kind):
    error = made(kind)
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is kind
        assert str(twin) == str(error)
        assert twin.__dict__ == error.__dict__


# Ids


def test_parent_and_child_never_make_the_same_id():
    new_id()  # there are more at hand now
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, "".join(new_id() for _ in range(100)).encode())
        os._exit(0)
    mine = [new_id() for _ in range(100)]
    os.waitpid(pid, 0)
    told = os.read(read, 32 * 100).decode()
    tails = {id[12:] for id in [*mine, *(told[at : at + 32] for at in range(0, len(told), 32))]}
    assert len(tails) == 200


def test_threads_never_make_the_same_id():
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda _: [new_id() for _ in range(500)], range(16)))
    assert len({id[12:] for some in made for id in some}) == 8_000
