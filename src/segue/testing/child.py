"""
Another process on the same data: ``python -m segue.testing.child FILE CLASS DIRECTORY``.

It opens a store as the suite's class does, says "ready", and then obeys one JSON command a line.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

from segue import codec
from segue.errors import NotDone
from segue.model import Draft, Lease, ScopeKey, SessionInfo
from segue.store import Append, Appended, Create, Op, Store, Take, Update

_TTL_US = 3_600_000_000


class Child:
    """
    A child process with its own handle, driven by the parent.

    Args:
        file: The file that defines the suite's class.
        name: The name of the class.
        directory: What the class's ``make_store`` is given.
    """

    def __init__(self, file: str, name: str, directory: Path) -> None:
        command = [sys.executable, "-m", "segue.testing.child", file, name, str(directory)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603

    @property
    def _in(self) -> IO[str]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def _out(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    def tell(self, **command: Any) -> None:
        """Send a command; it is done while the parent goes on."""
        self._in.write(json.dumps(command) + "\n")
        self._in.flush()

    def hear(self, patience_seconds: float) -> Any:
        """The next line it says. A child that says nothing in time is killed, and the test fails."""
        timer = threading.Timer(patience_seconds, self._process.kill)
        timer.start()
        try:
            line = self._out.readline()
        finally:
            timer.cancel()
        assert line, f"the child process ended ({self._process.poll()}) or said nothing for {patience_seconds} s"
        return json.loads(line)

    def kill(self) -> list[Any]:
        """Kill it at once, in the middle of what it does; the whole lines that it had still said."""
        self._process.kill()
        said = self._out.read()
        self.close()
        return [json.loads(line) for line in said.splitlines(keepends=True) if line.endswith("\n")]

    def close(self) -> None:
        """End it."""
        self._in.close()
        self._process.wait(30)
        self._out.close()


def main(arguments: list[str]) -> None:
    """Open the store, then do what each line says, until there are no more."""
    file, name, directory = arguments
    store = _store_of(file, name, Path(directory))
    _say("ready")
    for line in sys.stdin:
        _obey(store, json.loads(line))
    store.close()


def _store_of(file: str, name: str, directory: Path) -> Store:
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(Path(file).parent))
    spec.loader.exec_module(module)
    store: Store = getattr(module, name)().make_store(directory)
    return store


def _obey(store: Store, command: dict[str, Any]) -> None:
    if command["do"] == "append-for-ever":
        for number in range(1_000_000):
            (result,) = store.commit([_op({**command, "do": "append", "ids": [f"{command['prefix']}-{number}"]})])
            _say(_answer(result))
    (result,) = store.commit([_op(command)])
    _say(_answer(result))


def _op(command: dict[str, Any]) -> Op:
    scope = ScopeKey(*command["scope"])
    match command["do"]:
        case "create":
            return Create(scope, command["id"], key=command["key"])
        case "append":
            entries = tuple(_draft(id) for id in command["ids"])
            return Append(scope, command["session"], entries, expect=command.get("expect"))
        case "take":
            return Take(scope, command["session"], command["run"], _TTL_US)
        case "update":
            return Update(scope, command["session"], {"title": command["title"]}, command["expect"])
        case unknown:
            raise AssertionError(f"no such command: {unknown}")


def _draft(id: str) -> Draft:
    body = codec.encode({"id": id, "text": "x" * 200})
    return Draft("message", "anthropic", "user", body, codec.digest(body), id)


def _answer(result: object) -> dict[str, Any]:
    match result:
        case NotDone():
            return {"refused": type(result).__name__}
        case Appended():
            return {"head": result.head, "seqs": result.seqs, "new": result.new}
        case Lease():
            return {"run": result.run, "fence": result.fence}
        case SessionInfo():
            return {"id": result.id, "version": result.version}
        case _:
            return {"result": str(result)}


def _say(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
