"""
Talk to a model through the OpenAI client (openai.chat); go on another day with the same key.

    python examples/openai_chat.py "Why did East China's sales fall in August?"
    python examples/openai_chat.py --stream "Split it by SKU, too."

The sessions are in SEGUE_STORE (sqlite:///openai_chat.db unless told otherwise).
OPENAI_BASE_URL is honoured by the client.
"""

from __future__ import annotations

import argparse
import os

import openai

import segue
from segue.adapters.openai import summariser
from segue.compaction import Compaction


def query_sales(region: str, month: str = "2026-08") -> dict:
    """Sales of a region in a month, in million yuan."""
    return {"region": region, "month": month, "sales": 1.9}


def main() -> None:
    parser = argparse.ArgumentParser(description="Talk to a model; Segue keeps the history.")
    parser.add_argument("question")
    parser.add_argument("--key", default="example", help="which conversation")
    parser.add_argument("--stream", action="store_true")
    given = parser.parse_args()
    model = os.environ.get("MODEL", "gpt-5.4")
    with segue.open(os.environ.get("SEGUE_STORE", "sqlite:///openai_chat.db")) as db, openai.OpenAI() as client:
        session = db.scope(user=os.environ.get("USER", "local")).open_key(given.key, format="openai.chat")
        how = Compaction(summariser(client, model=model), tokens=100_000)
        with session.run() as run:
            chat = run.openai(
                client, model=model, instructions="You are a sales analyst.", tools=[query_sales], compaction=how
            )
            if given.stream:
                for delta in chat.stream(given.question):
                    print(delta.text if delta.kind == "text" else "", end="", flush=True)
                print()
            else:
                print(chat.send(given.question).text)


if __name__ == "__main__":
    main()
