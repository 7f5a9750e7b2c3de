"""
Strict stand-ins for the providers, on loopback: they check what a provider checks, and answer in its words.

``with fakes.serve() as server:`` gives one in a thread; ``python -m fakes`` is one in a process of its own.
"""

from .server import Server, serve

__all__ = ["Server", "serve"]
