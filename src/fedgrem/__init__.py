"""Mixture models over data that cannot be merged."""

__version__ = "0.1.0"
