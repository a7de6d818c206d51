"""Many columns into few, so that a mixture can be fitted: t-SNE, UMAP or principal components, kept on disk.

The paper embeds 70,000 images in 10 dimensions by t-SNE and does not say by which program. What there is:

- ``"umap"``, the default here: umap-learn, made for any number of dimensions, 3 minutes of one core for 70,000
  images; with a seed it uses no more.
- ``"tsne"``, which is what the paper names. No library does it for so many rows in 10 dimensions: the
  fast sums of openTSNE are for maps of one, two or three dimensions, and scikit-learn's exact method would hold
  70,000 x 70,000 numbers, 39 GB, several times over. Here openTSNE finds the neighbours and takes the steps, at its
  defaults (perplexity 30, 250 + 500 rounds), and asks :mod:`fedgrem.studies.tsne` for the gradient. The work grows with
  the square of the rows: one push among 70,000 rows takes 11 seconds of one core, and there are some 250 of them.
- ``"pca"``: principal components, in seconds and without the extra.

The study of each data set uses the one on which fits agree most, see ``benchmarks/embeddings.py``.

The first two see the leading 50 principal components, as is usual. Neighbours are found exactly for t-SNE, and
approximately by UMAP.

Limits. An embedding is made of all rows at once, so the rows of all sites are in one place before anything is
federated: it prepares a benchmark, not a study of data that cannot be merged. It sees rows that are held out later, but
no labels. It keeps who is near whom; distances and densities are its own, so errors on one embedding do not compare
with those on another. The same seed gives the same embedding on the same machine with the same versions; on another,
rounding may lead elsewhere, as in all methods of this kind.
"""

import hashlib
import json
import time
import warnings
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedgrem.errors import InputError, MissingExtraError
from fedgrem.studies.download import cache_folder
from fedgrem.types import Array

PRINCIPAL_COMPONENTS = 50
"""What t-SNE and UMAP see of the columns."""
LIBRARIES = {"umap": ("umap-learn", "pynndescent"), "tsne": ("openTSNE",), "pca": ("numpy",)}
"""Whose versions an embedding depends on."""
RECIPE = {"tsne": 2, "umap": 1, "pca": 1}
"""To be raised when the steps below change, so that embeddings made before are not taken for new ones."""
EARLY, LATE = 250, 500
"""Rounds of t-SNE with exaggerated attraction and without, openTSNE's defaults."""
PERPLEXITY = 30


class Embedding(NamedTuple):
    """Rows in few dimensions, and where they come from."""

    rows: Array
    """(N, n_components) float64."""
    seconds: float
    """Time it took, when it was made."""
    made: dict[str, Any]
    """What it was made of and by: method, n_components, seed, versions, shape and sha256 of the data."""


def embed(
    rows: Array,
    method: str = "umap",
    n_components: int = 10,
    seed: int = 0,
    cache: Path | None = None,
    *,
    on_progress: Callable[[int, int], None] | None = None,
) -> Embedding:
    """Embed rows, or read the embedding if it was made before of the same rows in the same way.

    Parameters
    ----------
    rows : (N, p).
    method : ``"umap"``, ``"tsne"`` or ``"pca"``, see above.
    n_components : dimensions of the embedding.
    seed : of all that is random; the same machine, versions and seed give the same embedding.
    cache : the folder to keep it in; None is ``embeddings`` in the cache of the package.
    on_progress : told (rounds done, rounds in all) by t-SNE.
    """
    rows = _checked(rows, method, n_components)
    made = {
        "method": method,
        "n_components": n_components,
        "seed": seed,
        "options": {},  # none; embeddings made before are known by it
        "versions": {"recipe": RECIPE[method]} | {name: _version(name, method) for name in LIBRARIES[method]},
        "shape": list(rows.shape),
        "sha256": hashlib.sha256(rows.data).hexdigest(),
    }
    text = json.dumps(made, sort_keys=True, default=repr)
    key = hashlib.sha256(text.encode()).hexdigest()[:20]
    path = (cache_folder() / "embeddings" if cache is None else cache) / f"{method}-{n_components}d-{key}.npy"
    kept = _read(path, (len(rows), n_components))
    if kept is not None:
        return kept
    _make_folder(path.parent)  # before an hour's work, not after it
    begin = time.monotonic()
    components = principal_components(rows, n_components if method == "pca" else PRINCIPAL_COMPONENTS)
    if method == "tsne":
        embedded = _tsne(components, n_components, seed, on_progress)
    elif method == "umap":
        embedded = _umap(components, n_components, seed)
    else:
        embedded = components
    result = Embedding(np.ascontiguousarray(embedded, dtype=np.float64), time.monotonic() - begin, json.loads(text))
    _write(path, result)
    return result


def principal_components(rows: Array, n_components: int) -> Array:
    """Rows along the directions in which they vary most, the first first; ``(N, n_components)`` or fewer columns.

    The sign of a direction is that which makes its largest entry positive, so that it does not depend on the machine.

    Examples
    --------
    >>> principal_components(np.array([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0]]), 1).ravel().tolist()
    [-2.0, 0.0, 2.0]
    """
    center = rows.mean(axis=0)
    covariance = rows.T @ rows / len(rows) - np.outer(center, center)
    directions = np.linalg.eigh(covariance)[1][:, ::-1][:, :n_components]
    largest = directions[np.abs(directions).argmax(axis=0), np.arange(directions.shape[1])]
    directions = directions * np.sign(largest)
    return np.asarray(rows @ directions - center @ directions)


def _tsne(rows: Array, n_components: int, seed: int, tell: Callable[[int, int], None] | None) -> Array:
    import openTSNE

    from fedgrem.studies.tsne import TSNEGradient

    total = EARLY + LATE + 2  # both phases end with a last look
    made = openTSNE.TSNE(
        n_components=n_components,
        perplexity=PERPLEXITY,
        early_exaggeration_iter=EARLY,
        n_iter=LATE,
        neighbors="exact",  # approximate search is not the same from run to run
        negative_gradient_method=TSNEGradient(on_call=None if tell is None else lambda done: tell(done, total)),
        n_jobs=-1,
        random_state=seed,
    ).fit(rows)
    return np.asarray(made)


def _umap(rows: Array, n_components: int, seed: int) -> Array:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ImportWarning)  # it misses TensorFlow, for a part that is not used here
        import umap

    # min_dist=0 packs clusters tightly, as its documentation advises for clustering; with a seed it has one thread.
    return np.asarray(
        umap.UMAP(n_components=n_components, random_state=seed, n_jobs=1, min_dist=0.0).fit_transform(rows)
    )


def _checked(rows: Array, method: str, n_components: int) -> Array:
    if method not in LIBRARIES:
        raise InputError(f"there is no embedding {method!r}; choose from: {', '.join(LIBRARIES)}.")
    if rows.ndim != 2 or not 1 <= n_components <= min(rows.shape):
        raise InputError(
            f"rows of shape {rows.shape} cannot be embedded in {n_components} dimensions; give (N, p) with at least as "
            "many of both."
        )
    if not np.isfinite(rows).all():
        bad = int((~np.isfinite(rows)).any(axis=1).sum())
        raise InputError(f"{bad} row(s) to embed hold NaN or infinity; drop them.")
    return np.ascontiguousarray(rows, dtype=np.float64)


def _version(library: str, method: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError as error:
        raise MissingExtraError(
            f'the embedding {method!r} needs {library}, which is not installed; run: pip install "fedgrem[embedding]".'
        ) from error


def _read(path: Path, shape: tuple[int, int]) -> Embedding | None:
    """A kept embedding; None if there is none, or what is there was damaged."""
    try:
        rows = np.load(path, allow_pickle=False)
        facts = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        return Embedding(rows, facts["seconds"], facts["made"]) if rows.shape == shape else None
    except (OSError, ValueError, KeyError, EOFError):
        return None


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"embeddings cannot be kept in {folder} ({error.strerror}); give another folder.") from error


def _write(path: Path, result: Embedding) -> None:
    facts = json.dumps({"seconds": result.seconds, "made": result.made}, indent=1)
    path.with_suffix(".json").write_text(facts + "\n", encoding="utf-8")
    partial = path.with_suffix(".tmp")
    with partial.open("wb") as file:
        np.save(file, result.rows)
    partial.replace(path)
