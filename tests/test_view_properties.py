"""Random histories, grown entry by entry: what a view promises holds at every step."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stores import FULL
from view_logs import FORMATS, OPS, check_growth

_ops = st.lists(st.tuples(st.sampled_from(OPS), st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=25)


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ops=_ops)
def test_every_view_of_a_growing_history_is_valid_complete_and_a_prefix(format, ops):
    check_growth(format, ops)


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("seed", range(40 if FULL else 6))
def test_long_random_histories_keep_every_promise(format, seed):
    rng = random.Random(seed)
    check_growth(format, [(rng.choice(OPS), rng.randrange(31), rng.randrange(31)) for _ in range(120)])
