"""A local step and a central step, one file an algorithm."""
