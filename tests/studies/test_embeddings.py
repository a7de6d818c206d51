"""Embeddings: the gradient of t-SNE against slow sums and openTSNE's own, seeds, and what is kept on disk."""

import sys
import types
from importlib import metadata

import numpy as np
import openTSNE
import pytest
from openTSNE.tsne import kl_divergence_bh
from scipy.spatial.distance import cdist

from fedgrem.errors import InputError, MissingExtraError
from fedgrem.studies import embeddings as module
from fedgrem.studies.embeddings import embed, principal_components
from fedgrem.studies.tsne import TSNEGradient

QUICK = {"PERPLEXITY": 5, "EARLY": 20, "LATE": 30}


@pytest.fixture(autouse=True, scope="module")
def _no_pynndescent():
    """The library looks for it by importing it, which takes half a minute where it was never imported before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("openTSNE.affinity.is_package_installed", lambda name: False)
        yield


@pytest.fixture(scope="module")
def blobs():
    """Three clumps of 40 rows in 20 dimensions, and the clump of each row."""
    random = np.random.default_rng(0)
    clump = np.repeat(np.arange(3), 40)
    return random.normal(size=(3, 20))[clump] * 5 + random.normal(size=(120, 20)), clump


@pytest.fixture(scope="module")
def neighbours(blobs):
    return openTSNE.affinity.PerplexityBasedNN(blobs[0], perplexity=10, method="exact").P


def slow_divergence(places, weights):
    near = 1 / (1 + cdist(places, places, "sqeuclidean"))
    np.fill_diagonal(near, 0)
    own, other = weights.nonzero()
    p = np.asarray(weights[own, other]).ravel()
    return p @ np.log(p / (near[own, other] / near.sum()))


def test_the_gradient_is_a_quarter_of_the_slope_of_the_divergence(neighbours):
    places = np.random.default_rng(1).normal(size=(120, 10)) * 3
    divergence, gradient = TSNEGradient()(places, neighbours)
    assert divergence == pytest.approx(slow_divergence(places, neighbours), rel=1e-5)
    for i, j in [(0, 0), (60, 3), (119, 9)]:
        step = np.zeros_like(places)
        step[i, j] = 1e-5
        slope = slow_divergence(places + step, neighbours) - slow_divergence(places - step, neighbours)
        assert 4 * gradient[i, j] == pytest.approx(slope / 2e-5, rel=1e-3)


def test_the_gradient_is_openTSNEs_own_in_two_dimensions(neighbours):
    places = np.random.default_rng(2).normal(size=(120, 2)) * 3
    divergence, expected = kl_divergence_bh(places, neighbours, 1, {"theta": 0.0}, should_eval_error=True)
    got, gradient = TSNEGradient()(places, neighbours)
    assert got == pytest.approx(divergence, rel=1e-6)
    np.testing.assert_allclose(gradient, expected, atol=1e-5 * np.abs(expected).max())


def test_blocks_do_not_change_the_gradient(neighbours, monkeypatch):
    from fedgrem.studies import tsne

    places = np.random.default_rng(3).normal(size=(120, 4))
    _, expected = TSNEGradient()(places, neighbours)
    for name, size in (("ROWS", 50), ("COLUMNS", 32), ("PAIRS", 100)):
        monkeypatch.setattr(tsne, name, size)
    single = 5e-6 * np.abs(expected).max()  # rounding of single precision
    np.testing.assert_allclose(TSNEGradient()(places, neighbours)[1], expected, atol=single)


def test_the_push_is_computed_every_third_round_and_for_every_look(neighbours):
    first, second = np.random.default_rng(4).normal(size=(2, 120, 4))
    _, fresh = TSNEGradient()(second, neighbours)
    gradient = TSNEGradient()
    gradient(first, neighbours)
    assert np.abs(gradient(second, neighbours)[1] - fresh).max() > 0.1 * np.abs(fresh).max()
    np.testing.assert_array_equal(gradient(second, neighbours, should_eval_error=True)[1], fresh)
    gradient = TSNEGradient()
    for _ in range(3):
        gradient(first, neighbours)
    np.testing.assert_array_equal(gradient(second, neighbours)[1], fresh)
    gradient = TSNEGradient(push_every=1)
    gradient(first, neighbours)
    np.testing.assert_array_equal(gradient(second, neighbours)[1], fresh)


def test_tsne_keeps_clumps_apart_and_is_the_same_by_seed(blobs, tmp_path, monkeypatch):
    for name, value in QUICK.items():
        monkeypatch.setattr(module, name, value)
    rows, clump = blobs
    told = []
    made = embed(rows, "tsne", 10, 0, tmp_path / "a", on_progress=lambda *done: told.append(done))
    assert made.rows.shape == (120, 10)
    assert made.rows.dtype == np.float64
    nearest = cdist(made.rows, made.rows) + np.diag(np.full(120, np.inf))
    np.testing.assert_array_equal(clump[nearest.argmin(axis=1)], clump)
    assert told[0] == (1, 52)
    assert told[-1] == (52, 52)
    np.testing.assert_array_equal(embed(rows, "tsne", 10, 0, tmp_path / "b").rows, made.rows)
    assert np.abs(embed(rows, "tsne", 10, 1, tmp_path / "b").rows - made.rows).max() > 1e-8


def test_principal_components_are_uncorrelated_sorted_and_signed(blobs):
    rows, _ = blobs
    components = principal_components(rows, 5)
    covariance = np.cov(components.T)
    np.testing.assert_allclose(covariance, np.diag(np.diag(covariance)), atol=1e-9 * covariance[0, 0])
    assert (np.diff(np.diag(covariance)) < 0).all()
    np.testing.assert_allclose(components.mean(axis=0), 0, atol=1e-9)
    singular = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)
    np.testing.assert_allclose(np.linalg.norm(components, axis=0), singular[:5])
    np.testing.assert_allclose(principal_components(rows[::-1], 5), components[::-1])


def test_an_embedding_is_made_once_and_read_after_that(blobs, tmp_path, monkeypatch):
    rows, _ = blobs
    made = embed(rows, "pca", 3, cache=tmp_path / "new")
    assert made.made["method"] == "pca"
    assert made.made["shape"] == [120, 20]
    assert made.made["versions"]["numpy"] == np.__version__
    monkeypatch.setattr(module, "principal_components", None)
    again = embed(rows, "pca", 3, cache=tmp_path / "new")
    np.testing.assert_array_equal(again.rows, made.rows)
    assert again[1:] == made[1:]
    assert sorted(path.suffix for path in (tmp_path / "new").iterdir()) == [".json", ".npy"]


def test_other_rows_seeds_and_versions_are_embedded_anew(blobs, tmp_path, monkeypatch):
    rows, _ = blobs
    embed(rows, "pca", 3, 0, tmp_path)
    embed(rows + 1, "pca", 3, 0, tmp_path)
    embed(rows, "pca", 2, 0, tmp_path)
    embed(rows, "pca", 3, 1, tmp_path)
    monkeypatch.setattr(metadata, "version", lambda name: "99")
    embed(rows, "pca", 3, 0, tmp_path)
    assert len(list(tmp_path.glob("*.npy"))) == 5


@pytest.mark.parametrize("suffix", [".npy", ".json"])
def test_a_damaged_file_is_made_anew(blobs, tmp_path, suffix):
    rows, _ = blobs
    made = embed(rows, "pca", 3, cache=tmp_path)
    (path,) = tmp_path.glob(f"*{suffix}")
    path.write_bytes(path.read_bytes()[:10])
    np.testing.assert_array_equal(embed(rows, "pca", 3, cache=tmp_path).rows, made.rows)


def test_the_cache_of_the_package_is_used_where_none_is_given(blobs, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDGREM_CACHE", str(tmp_path))
    embed(blobs[0], "pca", 2)
    assert len(list((tmp_path / "embeddings").glob("pca-2d-*.npy"))) == 1


def test_umap_is_asked_for_one_thread_tight_clusters_and_50_components(blobs, tmp_path, monkeypatch):
    asked = {}

    class UMAP:
        def __init__(self, **arguments):
            asked.update(arguments)

        def fit_transform(self, rows):
            asked["columns"] = rows.shape[1]
            return rows[:, : asked["n_components"]].astype(np.float32)

    monkeypatch.setitem(sys.modules, "umap", types.SimpleNamespace(UMAP=UMAP))
    rows = np.tile(blobs[0], (1, 4))
    assert embed(rows, "umap", 4, 7, tmp_path).rows.shape == (120, 4)
    assert asked == {
        "n_components": 4,
        "random_state": 7,
        "n_jobs": 1,
        "min_dist": 0.0,
        "columns": 50,
    }


@pytest.mark.slow
def test_the_real_umap_is_the_same_by_seed(blobs, tmp_path):
    rows, clump = blobs
    first, second = (embed(rows, "umap", 5, 0, tmp_path / name).rows for name in "ab")
    np.testing.assert_array_equal(first, second)
    nearest = cdist(first, first) + np.diag(np.full(120, np.inf))
    np.testing.assert_array_equal(clump[nearest.argmin(axis=1)], clump)


@pytest.mark.parametrize("method", ["tsne", "umap"])
def test_a_missing_library_is_named_with_its_extra(blobs, tmp_path, monkeypatch, method):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(MissingExtraError, match=r'needs (openTSNE|umap-learn), .*pip install "fedgrem\[embedding\]"'):
        embed(blobs[0], method, 2, cache=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "isomap"}, "there is no embedding 'isomap'; choose from: umap, tsne, pca"),
        ({"n_components": 21}, r"rows of shape \(120, 20\) cannot be embedded in 21 dimensions"),
    ],
)
def test_what_cannot_be_done_is_refused(blobs, tmp_path, arguments, message):
    with pytest.raises(InputError, match=message):
        embed(blobs[0], cache=tmp_path, **arguments)


def test_rows_with_gaps_are_refused(blobs, tmp_path):
    rows = blobs[0].copy()
    rows[3, 4] = np.nan
    with pytest.raises(InputError, match=r"1 row\(s\) to embed hold NaN or infinity"):
        embed(rows, "pca", 2, cache=tmp_path)


def test_a_folder_that_cannot_be_made_is_told_before_the_work(blobs, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(module, "principal_components", None)
    with pytest.raises(InputError, match="embeddings cannot be kept in"):
        embed(blobs[0], "pca", 2, cache=tmp_path / "file" / "inside")
