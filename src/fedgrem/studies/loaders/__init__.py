"""Pen digits, MNIST and Fashion-MNIST: from a folder, or downloaded and cached; checked either way.

The package holds none of these files. Check sums are of contents, not of archives: gzip headers carry a time stamp that
differs between mirrors, and UCI publishes no check sum of its archive.
"""
