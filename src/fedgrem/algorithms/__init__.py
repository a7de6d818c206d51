"""Algorithms: a local step and a central step each, and the one loop that plays the rounds."""
