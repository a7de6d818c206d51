"""The same fit over a network, on NVFlare.

Modules that import ``nvflare`` are ``controller``, ``executor``, ``filters``, ``launcher``, ``transport``, ``kit`` and
``session``; the rest is plain and is tested without it. Importing this package imports none of them.
"""
