"""
The main job: a sales analyst on Monday, a restated warehouse at night, and Tuesday in another process.

    python -m examples.sales_analyst                    the whole story, in ./segue-demo
    python -m examples.sales_analyst tuesday --store …  one day of it
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from segue.errors import SegueError

from .clock import ZONE_NAME, Story
from .facts import Facts
from .model import Model, choose
from .screen import Screen, pad, use_utf8
from .story import TENANT, USER, Place, early, in_a_process, monday, night, prepare
from .tuesday import tuesday

FOLDER = Path("segue-demo")


def main() -> int:
    """
    Play the story, or one day of it.

    Returns:
        0 when it was played to the end, 1 when the store or the model refused, 2 for wrong arguments.
    """
    parser = argparse.ArgumentParser(prog="python -m examples.sales_analyst", description=__doc__.split("\n\n")[0])
    parser.add_argument("day", nargs="?", choices=("all", "monday", "tuesday"), default="all")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the warehouse is kept (deleted first)")
    parser.add_argument("--store", help="URL of the store; default: an SQLite file in the folder")
    parser.add_argument("--year", type=int, help="the story's year; default: the newest whose August is over")
    given = parser.parse_args()
    use_utf8()
    store = given.store or f"sqlite:///{given.folder / 'agent.db'}"
    place = Place(given.folder, store, given.year or Story.newest().year)
    try:
        play(place, given.day, choose())
    except SegueError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("anthropic", "openai"):
            raise
        print(f"The model did not answer: {error}\nWithout its key, the stand-in plays.", file=sys.stderr)
        return 1
    return 0


def play(place: Place, day: str, model: Model) -> None:
    """Play one day, or all."""
    if day == "monday":
        monday(place, model, Screen())
    elif day == "tuesday":
        tuesday(place, model, Screen(number=2))
    else:
        prepare(place)
        greet(place, model, Screen())
        in_a_process(place, "monday")
        night(place, Screen(number=1))
        early(place)
        in_a_process(place, "tuesday")
        goodbye(place, Screen())


def greet(place: Place, model: Model, screen: Screen) -> None:
    """What is played, with which model, where."""
    screen.title(
        "Segue · the sales analyst  销售分析师",
        "A session is kept whole, brought back on the next day, and told what changed meanwhile.",
        "会话完整保存，次日接着做，并得知期间什么变了。",
    )
    named = f"{model.name}, through the official client"
    if model.name == "stand-in":
        named = "a scripted stand-in: neither ANTHROPIC_API_KEY nor OPENAI_API_KEY is set. The rest is real."
    screen.pairs([("model", named), ("store", place.store), ("data", f"{place.warehouse}, {place.folder}/targets.csv")])


def goodbye(place: Place, screen: Screen) -> None:
    """How to look at what was stored."""
    facts = Facts(place.facts).read()
    screen.title("Look at what was stored  自己看看存下了什么")
    screen.line()
    screen.text(f"segue shows times of the zone TZ; the story plays in {ZONE_NAME}.")
    screen.line()
    screen.line("     ", f"export SEGUE_STORE={place.store} SEGUE_TENANT={TENANT} SEGUE_USER={USER} TZ={ZONE_NAME}")
    for what, why in (
        ("ls", "the sessions"),
        (f"show {facts['session'][-8:]}", "the analysis, entry by entry"),
        (f"show {facts['fork'][-8:]}", "its fork"),
        ("verify", "every entry against its digest"),
    ):
        screen.line("     ", pad(f"{program()} {what}", 36), (f"  # {why}", "dim"))
    screen.line()


def program() -> str:
    """How the reader calls ``segue`` from here."""
    beside = Path(sys.executable).with_name("segue")
    if shutil.which("segue") and Path(shutil.which("segue") or "").resolve() == beside.resolve():
        return "segue"
    return os.path.relpath(beside)


if __name__ == "__main__":
    sys.exit(main())
