"""The command ``pyg-kpnn``: check, fit, explain, knockout, audit, bench and info, from the shell."""

from .app import main

__all__ = ["main"]
