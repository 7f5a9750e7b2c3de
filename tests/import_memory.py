"""What an import of ``big.jsonl`` in a folder needs beyond one of ``small.jsonl``, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import NamedTuple

import import_samples as samples

_CODE = """
    import resource
    import segue
    from segue.importers import import_file

    def peak():
        try:  # what getrusage tells begins with the peak of the process that started this one
            text = open("/proc/self/status").read()
        except OSError:
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return int(text.split("VmHWM:")[1].split()[0]) * 1024

    with segue.open("sqlite:///big.db") as db:
        import_file(db.scope(), "small.jsonl")
        before = peak()
        report = import_file(db.scope(), "big.jsonl")
        after = peak()
        session = db.scope().get_key(report.sessions[0].key)
        last = session.read(kinds=["message"], last=1)[0].json()["content"]
    print(report.records, after - before, report.counts["too-large"], last)
"""


class Needed(NamedTuple):
    """Records of the file, bytes of memory beyond a small import, messages too large to be shown, the last one."""

    records: int
    more_bytes: int
    large: int
    last: str


def needed(folder):
    (folder / "small.jsonl").write_bytes(samples.claude())
    code = textwrap.dedent(_CODE)
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    records, more, large, last = done.stdout.split()
    return Needed(int(records), int(more), int(large), last)
