"""The same fit over NVFlare: what touches it, and no more; everything else is in :mod:`fedgrem.engines.remote`.

Importing this package imports none of its modules.
"""
