"""Block models: sums over edges and what follows from them, in closed form."""

import numpy as np
import pytest

from fedgrem.fit.networks import lost
from fedgrem.kernels.blocks import (
    BlockSums,
    block_sums,
    communities,
    densities,
    level_of,
    likely_orders,
    misfit,
    relabelled,
)
from fedgrem.kernels.rotation import align_rotations, procrustes

NETWORK = np.array([[0, 1, 1, 0], [1, 0, 0, 0], [1, 0, 0, 1], [0, 0, 1, 0]], dtype=float)
LABELS = np.array([[1, 0], [1, 0], [0, 1], [0, 1]], dtype=float)


def sums_of(center, n=200, seed=0):
    generator = np.random.default_rng(seed)
    labels = np.eye(len(center))[generator.choice(len(center), size=n)]
    upper = np.triu(generator.random((n, n)) < labels @ center @ labels.T, 1)
    return block_sums((upper | upper.T).astype(float), labels, center, np.ones(n))


def test_sums_count_edges_and_pairs_from_both_ends():
    found = block_sums(NETWORK, LABELS, np.ones((2, 2)), np.ones(4))
    np.testing.assert_array_equal(found.held, [2, 2])
    np.testing.assert_array_equal(found.edges, [[2, 1], [1, 2]])
    np.testing.assert_array_equal(found.pairs, [[2, 4], [4, 2]])


def test_a_pair_counts_for_the_product_of_its_degrees():
    found = block_sums(NETWORK, LABELS, np.ones((2, 2)), np.array([1.0, 2.0, 3.0, 5.0]))
    np.testing.assert_array_equal(found.pairs, [[4, 24], [24, 30]])


def test_labels_follow_the_densities():
    blocks = np.kron(np.eye(2), np.ones((6, 6))) - np.eye(12)
    start = np.tile([0.5, 0.5], (12, 1))
    start[0] = [0.9, 0.1]
    found = communities(blocks, start, np.array([[[0.9, 0.05], [0.05, 0.9]]]), np.ones(12), 20)
    np.testing.assert_array_equal(found.argmax(axis=1), np.repeat([0, 1], 6))


def test_candidates_side_by_side_are_each_as_alone():
    generator = np.random.default_rng(0)
    starts = generator.dirichlet([1.0, 1.0], size=(4, 2))
    density = np.array([[[0.5, 0.2], [0.2, 0.4]], [[0.3, 0.1], [0.1, 0.6]]])
    both = communities(NETWORK, starts.reshape(4, 4), density, np.ones(4), 3).reshape(4, 2, 2)
    for m in range(2):
        np.testing.assert_allclose(both[:, m], communities(NETWORK, starts[:, m], density[[m]], np.ones(4), 3))


def test_the_level_is_that_of_the_whole_network():
    center = np.array([[0.4, 0.1], [0.1, 0.2]])
    found = sums_of(center)
    assert level_of(found, 0.5 * center) == pytest.approx(2.0, rel=0.05)
    np.testing.assert_allclose(densities(found), center, atol=0.02)


@pytest.mark.parametrize("n_communities", [3, 4, 7])
def test_the_right_relabelling_comes_first(n_communities):
    generator = np.random.default_rng(n_communities)
    center = generator.uniform(0.05, 0.5, size=(n_communities, n_communities))
    center = 0.5 * (center + center.T)
    found = sums_of(center, 400)
    hidden = generator.permutation(n_communities)
    orders = likely_orders(relabelled(found, hidden), center, 5, generator)
    np.testing.assert_array_equal(hidden[orders[0]], np.arange(n_communities))


def test_misfit_is_about_chi_squared():
    center = np.array([[0.10, 0.04], [0.04, 0.06]])  # sparse, where edges are nearly Poisson
    told = [float(misfit(sums_of(center, seed=seed), center)) for seed in range(200)]
    assert np.mean(told) == pytest.approx(2.0, abs=0.4)  # three densities, less the level


def test_only_who_clearly_loses_is_given_its_own_fit_back():
    own, pulled = (
        BlockSums(np.ones((3, 2)), np.ones((3, 2, 2)), np.ones((3, 2, 2)), np.array(bound))
        for bound in ([0.0, 5.0, 50.0], [0.0, 0.0, 0.0])
    )
    np.testing.assert_array_equal(lost(own, pulled), [False, False, True])


def test_procrustes_finds_the_rotation():
    generator = np.random.default_rng(1)
    points, turn = generator.normal(size=(5, 3)), np.linalg.qr(generator.normal(size=(3, 3)))[0]
    np.testing.assert_allclose(procrustes(points, points @ turn, np.ones(5)), turn, atol=1e-12)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_sites_are_rotated_and_relabelled_onto_each_other(size):
    generator = np.random.default_rng(size)
    center = generator.normal(size=(size, size))
    held = generator.uniform(20, 60, size=(6, size))
    hidden = np.array([generator.permutation(size) for _ in range(6)])
    turns = np.stack([np.linalg.qr(generator.normal(size=(size, size)))[0] for _ in range(6)])
    means = np.stack(
        [(center + 0.01 * generator.normal(size=center.shape))[p] @ q for p, q in zip(hidden, turns, strict=True)]
    )
    order, rotation = align_rotations(means, held, generator)
    aligned = np.stack([m[o] @ q for m, o, q in zip(means, order, rotation, strict=True)])
    assert np.abs(aligned - aligned.mean(axis=0)).max() < 0.1
