"""A ref of a git repository."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from segue.ledger import Answer, Gone, Unanswered, Version

_REF = re.compile(r"[\w@][\w./@{}~^+-]{0,199}")


class Git:
    """
    The version is the object id that a ref names.

    Args:
        repository: The folder of the repository.
        ref: A branch, tag or commit; None: what follows ``git:`` in the source's name.
        path: A file or folder in it: its blob or tree is the version, so that other commits do not alarm.
        remote: A remote's name or URL: ask it, by ``git ls-remote``, instead of the local copy.
        timeout_seconds: After this, git is stopped.

    Blind spots: changes in the working tree that are not committed; submodules' contents; without
    ``remote``, what was pushed elsewhere and not fetched. A commit that is made and taken back does not show.
    """

    def __init__(
        self,
        repository: str | Path,
        ref: str | None = "HEAD",
        *,
        path: str | None = None,
        remote: str | None = None,
        timeout_seconds: float = 10.0,
    ) -> None:
        self._repository = str(repository)
        self._ref = ref
        self._path = path
        self._remote = remote
        self._timeout_seconds = timeout_seconds

    def read(self, source: str, *, principal: str | None = None, seen: Version | None = None) -> Answer:
        """The object that the ref names now."""
        ref = source.removeprefix("git:") if self._ref is None else self._ref
        if not _REF.fullmatch(ref):
            return Unanswered("not the name of a ref")
        if not Path(self._repository).is_dir():
            return Unanswered("the repository's folder is not there; is it mounted?")
        if self._remote is not None:
            return self._at_remote(ref, self._remote)
        # Whether the ref itself is there first: git does not tell a missing ref from a missing path.
        commit = self._git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
        if self._path is None or commit.returncode:
            return _object(commit)
        listed = self._git("ls-tree", "--full-tree", ref, "--", self._path.rstrip("/"))
        return _object(listed, column=2)

    def _at_remote(self, ref: str, remote: str) -> Answer:
        found = self._git("ls-remote", "--", remote, ref)
        lines = [line.split("\t") for line in found.stdout.splitlines()]
        exact = {name: oid for oid, name in lines}
        for name in (ref, f"refs/heads/{ref}", f"refs/tags/{ref}"):
            if name in exact:
                return Version("git", exact[name])
        return Unanswered(_reason(found)) if found.returncode else Gone()

    def _git(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        # The ref may come from untrusted text: no shell, no options after the end mark, no prompt.
        return subprocess.run(  # noqa: S603
            ["git", "-C", self._repository, *arguments],  # noqa: S607
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=self._timeout_seconds,
            env=os.environ | {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
        )


def _object(found: subprocess.CompletedProcess[str], column: int = 0) -> Answer:
    columns = found.stdout.split()
    if found.returncode == 0 and len(columns) > column:
        return Version("git", columns[column])
    if found.returncode in (0, 1):
        return Gone()
    return Unanswered(_reason(found))


def _reason(found: subprocess.CompletedProcess[str]) -> str:
    first = found.stderr.strip().splitlines()[:1]
    return f"git: {first[0]}" if first else f"git ended with {found.returncode}"
