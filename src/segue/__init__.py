"""Segue: the session layer for AI agents."""
