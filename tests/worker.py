"""
What the tests run in processes of their own: ``python worker.py TASK URL JSON``.

Every process prints one JSON line when it is done; what it prints earlier are acknowledgements.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta

import segue


def say(**facts):
    print(json.dumps(facts), flush=True)


def turn(name, number):
    """Four messages that belong together: a question, a call, its result, an answer."""
    call = f"toolu_{name}_{number}"
    return [
        {"role": "user", "content": f"{name} asks {number}"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": call, "name": "look", "input": {"n": number}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": f"{name} {number}"}]},
        {"role": "assistant", "content": f"{name} answers {number}"},
    ]


def turns(db, session, *, name, count, policy):
    """Take the session ``count`` times for one turn each; with ``reject`` a refused turn is over."""
    won = []
    for number in range(count):
        try:
            with session.run(policy=policy, wait=timedelta(seconds=240)) as run:
                messages = turn(name, number)
                run.append(messages[0])
                run.append(*messages[1:3])
                run.append(messages[3])
                won.append(number)
        except segue.Busy:
            time.sleep(0.001)
    say(won=won)


def appends(db, session, *, name, batch):
    """Append batches until killed; acknowledge each."""
    number = 0
    while True:
        items = [{"role": "user", "content": f"{name} {number} {n}"} for n in range(batch)]
        done = session.append(*items, ids=[f"{name}-{number}-{n}" for n in range(batch)])
        say(number=number, seqs=done.seqs)
        number += 1


def hold(db, session, *, name, ttl):
    """Take the lease, append, and go on appending after whatever happens meanwhile."""
    run = session.run(ttl=timedelta(seconds=ttl))
    run.append({"role": "user", "content": f"{name} before"})
    say(fence=run.fence)
    sys.stdin.readline()  # the test stops us, lets another take over, and continues us
    late = 0
    for number in range(20):
        try:
            run.append({"role": "user", "content": f"{name} late {number}"})
            late += 1
        except segue.LeaseLost:
            pass
    say(late=late)


if __name__ == "__main__":
    task, url, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    with segue.open(url) as db:
        session = db.scope("acme", "lin").open(options.pop("session"))
        globals()[task](db, session, **options)
