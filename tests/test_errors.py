"""What every error can be relied on for, whatever it says."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from segue import errors

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
