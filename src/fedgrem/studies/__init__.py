"""The paper's studies and ours, behind ``fedgrem reproduce``: specs, loaders, a resumable runner, and pages.

``specs`` says what is run, ``runner`` runs it cell by cell (``cells``, ``methods``, ``starts``: the only modules that
call the numerical core), ``splits`` and ``loaders`` bring real rows, ``pages`` tells what came of it.
"""
