"""A network that cannot be used is refused with the reason, and one that can is embedded."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from fedgrem import embed_network
from fedgrem.data.networks import check_network, scree_break
from fedgrem.data.simulate import simulate_network
from fedgrem.errors import InputError, InputTypeError, ShapeError


def ring(n=8):
    network = np.roll(np.eye(n), 1, axis=0)
    return network + network.T


def changed(i, j, value):
    network = ring()
    network[i, j] = network[j, i] = value
    return network


@pytest.mark.parametrize(
    ("network", "error", "words"),
    [
        (np.triu(ring()), InputError, "is not symmetric; edges have no direction here"),
        (changed(0, 1, -1.0), InputError, r"has 1 edge\(s\) of negative weight"),
        (changed(2, 2, 1.0), InputError, r"has 1 self-loop\(s\), the first at node 2; set the diagonal to 0"),
        (changed(0, 1, np.nan), InputError, "has edges that are NaN or infinite; an absent edge is 0"),
        (np.pad(ring(), (0, 2)), InputError, r"has 2 node\(s\) without an edge, the first number 8; leave them out"),
        (np.kron(np.eye(2), ring()), InputError, "falls into 2 parts without an edge between them, of 8 nodes"),
        (ring(3), InputError, r"has 3 node\(s\), expected at least 4"),
        (ring()[:, :5], ShapeError, r"has shape \(8, 5\), expected \(n, n\)"),
        ([["a", "b"], ["b", "a"]], InputTypeError, "is not a numeric adjacency matrix"),
    ],
)
def test_what_is_wrong_with_a_network_is_said(network, error, words):
    with pytest.raises(error, match=f"the school {words}"):
        check_network(network, "the school")


@pytest.mark.parametrize("dimension", [0, 8, 2.0, "all"])
def test_a_dimension_that_cannot_be_is_refused(dimension):
    with pytest.raises(InputError, match=r"dimension is .*expected a whole number"):
        embed_network(ring(), dimension)


def test_the_embedding_is_the_nearest_of_its_dimension():
    network, _ = simulate_network(np.array([[0.6, 0.2], [0.2, 0.5]]), 60, seed=1)
    values, vectors = np.linalg.eigh(network)
    lead = np.argsort(-np.abs(values))[:2]
    rows = embed_network(network, 2)
    np.testing.assert_allclose(rows @ rows.T, (vectors[:, lead] * np.abs(values[lead])) @ vectors[:, lead].T, atol=1e-8)
    np.testing.assert_array_equal(rows, embed_network(csr_array(network), 2))


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_the_dimension_is_the_rank_of_clear_densities(rank):
    densities = np.full((rank, rank), 0.02) + 0.5 * np.eye(rank)
    network, _ = simulate_network(densities, 300, weights=np.full(rank, 1.0 / rank), seed=rank)
    assert embed_network(network).shape == (300, rank)


def test_one_number_has_no_break():
    assert scree_break(np.array([3.0])) == 1
