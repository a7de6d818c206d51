"""The paper's studies and ours, behind ``fedgrem reproduce``.

A study is one file with a spec (settings x methods x seeds) and the function that makes its page, out of the parts in
``base``; ``registry`` lists them. ``runner`` runs any of them cell by cell (``cells`` and ``starts``: the only modules
that call the numerical core), ``splits`` brings real rows (``download``,
``pen``, ``images``, ``embeddings``), ``page`` writes what came of it.
"""
