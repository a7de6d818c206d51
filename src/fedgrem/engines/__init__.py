"""Engines: who runs the local steps, and where."""

from fedgrem.engines.inprocess import InProcess

__all__ = ["InProcess"]
