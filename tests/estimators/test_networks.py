"""Communities of networks that cannot be merged."""

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from fedgrem import FederatedGaussianMixture, FederatedNetworkMixture, align_embeddings, embed_network, save_model
from fedgrem.data.simulate import simulate_network
from fedgrem.errors import InputError, InputTypeError
from fedgrem.fit.networks import NetworkSite, NetworkSpec, network_match, network_start
from fedgrem.kernels.scores import misclustering_rate
from fedgrem.types import count_numbers

DENSITIES = np.array([[0.32, 0.10, 0.05], [0.10, 0.24, 0.08], [0.05, 0.08, 0.18]])
EVEN = np.full(3, 1.0 / 3.0)
NAMES = ("north", "south", "east", "west", "mid")


@pytest.fixture(scope="module")
def drawn():
    sizes = (90, 120, 150, 200, 250)
    return {
        name: simulate_network(DENSITIES, n, seed=seed) for seed, (name, n) in enumerate(zip(NAMES, sizes, strict=True))
    }


@pytest.fixture(scope="module")
def model(drawn):
    return FederatedNetworkMixture(3, random_state=0).fit({name: network for name, (network, _) in drawn.items()})


def wrong(model, drawn):
    return np.mean([misclustering_rate(true, model.labels_[name]) for name, (_, true) in drawn.items()])


def test_together_networks_find_their_communities_better_than_alone(model, drawn):
    rows = {name: embed_network(network, 3) for name, (network, _) in drawn.items()}
    alone = FederatedGaussianMixture(3, covariance_type="full", algorithm="local-em", random_state=0).fit(rows)
    embedded = [misclustering_rate(true, alone.predict(rows[name], sites=name)) for name, (_, true) in drawn.items()]
    assert wrong(model, drawn) < 0.5 * np.mean(embedded)


def test_a_label_means_the_same_everywhere(model, drawn):
    labels = np.concatenate([model.labels_[name] for name in drawn])
    truth = np.concatenate([true for _, true in drawn.values()])
    assert misclustering_rate(truth, labels) < 1.2 * wrong(model, drawn) + 0.01


def test_the_center_is_near_the_common_densities(model):
    order = np.argsort(-np.diagonal(model.center_))
    np.testing.assert_allclose(model.center_[np.ix_(order, order)], DENSITIES, atol=0.035)
    assert model.converged_
    np.testing.assert_allclose(model.weights_.sum(axis=1), 1.0)


def test_neither_the_order_of_nodes_nor_their_number_shows_in_what_leaves(drawn):
    spec = NetworkSpec(3, False, 2, 10, 1e-3, 0)
    sent = {}
    for name in ("north", "mid"):
        site = NetworkSite(name, csr_array(drawn[name][0]))
        replies = network_start(spec, site, ()), network_match(spec, site, DENSITIES[None])
        sent[name] = [count_numbers(reply) for reply in replies]
    assert sent["north"] == sent["mid"]


def test_a_network_of_another_kind_keeps_its_own_densities_and_does_not_move_the_center(model, drawn):
    odd = np.array([[0.02, 0.3, 0.3], [0.3, 0.02, 0.3], [0.3, 0.3, 0.02]])
    networks = {name: network for name, (network, _) in drawn.items()} | {"odd": simulate_network(odd, 200, seed=9)[0]}
    found = FederatedNetworkMixture(3, random_state=0).fit(networks)
    assert found.trust_[-1] < 0.7 * found.trust_[:-1].min()
    assert wrong(found, drawn) < 1.3 * wrong(model, drawn) + 0.02


def test_denser_networks_are_at_another_level(drawn):
    networks = {name: network for name, (network, _) in drawn.items()}
    networks["mid"] = 3.0 * networks["mid"]  # three contacts where there was one
    found = FederatedNetworkMixture(3, random_state=0).fit(networks)
    assert found.level_[-1] == pytest.approx(3.0, rel=0.15)
    assert wrong(found, drawn) < 0.2


def test_hubs_are_no_community_where_degrees_are_corrected_for():
    generator = np.random.default_rng(5)
    networks = {}
    for name in NAMES:
        labels, hub = generator.integers(2, size=160), np.where(generator.random(160) < 0.3, 4.0, 1.0)
        chance = 0.03 * np.where(labels[:, None] == labels, 2.5, 0.8) * np.outer(hub, hub)
        upper = np.triu(generator.random((160, 160)) < chance, 1)
        joined = np.flatnonzero((upper | upper.T).any(axis=1))
        networks[name] = (upper | upper.T).astype(float)[np.ix_(joined, joined)], labels[joined]
    given = {name: network for name, (network, _) in networks.items()}
    found = {c: FederatedNetworkMixture(2, degree_corrected=c, random_state=0).fit(given) for c in (False, True)}
    assert wrong(found[True], networks) < 0.12 < 0.3 < wrong(found[False], networks)


def test_a_network_that_comes_later_is_told_by_the_common_densities(model):
    network, true = simulate_network(DENSITIES, 220, seed=77)
    assert misclustering_rate(true, model.predict(network)) < 0.15
    assert model.predict_proba(csr_array(network)).shape == (220, 3)


def test_fits_repeat_and_clone(model, drawn):
    again = clone(model).fit({name: csr_array(network) for name, (network, _) in drawn.items()})
    np.testing.assert_array_equal(again.labels_["east"], model.labels_["east"])


def test_embeddings_are_rotated_onto_each_other():
    rows = {
        name: embed_network(simulate_network(DENSITIES, 400, weights=EVEN, seed=seed)[0], 3)
        for seed, name in enumerate(NAMES)
    }
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    rows["south"] = rows["south"] @ turn
    aligned = align_embeddings(rows, 3)

    def apart(found):
        means = [one.mean(axis=0) for one in found.values()]
        return max(np.linalg.norm(a - b) for a in means for b in means)

    assert apart(aligned) < 0.25 * apart(rows)
    for name in NAMES:  # rotated, nothing else
        np.testing.assert_allclose(aligned[name] @ aligned[name].T, rows[name] @ rows[name].T, atol=1e-9)


def test_a_model_of_networks_is_not_saved_as_a_folder(model, tmp_path):
    with pytest.raises(InputTypeError, match="FederatedNetworkMixture is not saved as a folder; keep what it found"):
        save_model(model, tmp_path / "model")


def test_what_cannot_be_fitted_is_named(drawn):
    network = drawn["north"][0]
    with pytest.raises(InputError, match="network 'west' is not symmetric"):
        FederatedNetworkMixture(2).fit({"north": network, "west": np.triu(network)})
    with pytest.raises(InputError, match="network '0' has 90 nodes, expected at least 100, two for each of 50"):
        FederatedNetworkMixture(50).fit([network])
    with pytest.raises(InputTypeError, match="got a ndarray, expected a dict or a list"):
        FederatedNetworkMixture(2).fit(network)
    with pytest.raises(InputError, match="got no network"):
        FederatedNetworkMixture(2).fit({})
    with pytest.raises(InputTypeError, match="n_components"):
        FederatedNetworkMixture(2.5).fit([network])
    with pytest.raises(NotFittedError, match="not fitted yet"):
        FederatedNetworkMixture(2).predict(network)
    with pytest.raises(InputError, match=r"dimensions \[\(2,\), \(3,\)\], expected one"):
        align_embeddings({"a": np.ones((9, 2)), "b": np.ones((9, 3))}, 2)
