"""The examples run, plain and streaming, and go on in a second process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fakes

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ["anthropic_chat", "openai_chat", "openai_responses"])
def test_an_example_asks_and_goes_on_in_another_process(tmp_path, name):
    with fakes.serve() as server:
        keys = {"ANTHROPIC_API_KEY": "none", "OPENAI_API_KEY": "none"}
        urls = {"ANTHROPIC_BASE_URL": server.url, "OPENAI_BASE_URL": f"{server.url}/v1"}
        environment = {**os.environ, **keys, **urls, "SEGUE_STORE": f"sqlite:///{tmp_path}/x.db"}
        for words in (["do 1 #x"], ["--stream", "and now?"]):
            done = subprocess.run(
                [sys.executable, ROOT / "examples" / f"{name}.py", *words],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            assert f"Done: {words[-1]}" in done.stdout
        assert server.refused == []
