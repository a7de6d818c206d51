"""The in-process engine: sites in any number of buckets, answered in site order."""

import jax.numpy as jnp
import numpy as np

from fedgrem.algorithms.base import Engine
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.algorithms.rounds import LoopState
from fedgrem.algorithms.start import StartPlan
from fedgrem.data import federation as federation_module
from fedgrem.engines import InProcess
from fedgrem.engines.inprocess import BLOCK
from fedgrem.types import Broadcast, Params
from tests.conformance.engines import compiled
from tests.conformance.families import FAMILIES

CASE = FAMILIES[0]
START = StartPlan(n_components=2)
SIZES = (20, 120, 50, 9, 33)


def sent(n_sites):
    weights, theta = map(jnp.asarray, CASE.near(0, n_sites))
    return Broadcast(Params(weights, theta), weights)


def first_state(algorithm, n_sites):
    broadcast = sent(n_sites)
    zero = jnp.asarray(0)
    central = algorithm.central_start(broadcast.params, jnp.asarray(SIZES[:n_sites], dtype=float))
    return LoopState(central, zero, zero, jnp.asarray(False))


def test_replies_come_in_site_order_whatever_the_buckets(monkeypatch):
    monkeypatch.setattr(federation_module, "BUCKET_OVERHEAD", 0)
    data, algorithm = CASE.federation(1, SIZES), FedGrEM(CASE.family)
    engine: Engine = InProcess(algorithm, data, START)
    message = sent(5)
    replies = engine.ask("local_step", message)
    np.testing.assert_array_equal(replies.n_rows, SIZES)
    for k, site in enumerate(data.sites):
        own = Broadcast(Params(message.params.weights[k], message.params.theta[k]), message.first_weights[k])
        alone = compiled("local_step", START)(algorithm, site.as_data(), own)
        np.testing.assert_allclose(replies.params.theta[k], alone.params.theta, rtol=1e-11)
        np.testing.assert_allclose(replies.log_likelihood[k], alone.log_likelihood, rtol=1e-11)


def test_one_call_plays_at_most_a_block_and_at_most_the_limit():
    data, algorithm = CASE.federation(1, SIZES), FedGrEM(CASE.family)
    engine = InProcess(algorithm, data, START)
    for limit, played in ((3, 3), (BLOCK, BLOCK), (10 * BLOCK, BLOCK)):
        state, records = engine.play(first_state(algorithm, 5), 0.0, limit)
        assert int(state.round) == played
        assert {leaf.shape[0] for leaf in records} == {played}


def test_a_single_site_is_a_federation_too():
    data, algorithm = CASE.federation(1, SIZES[:1]), FedGrEM(CASE.family)
    state, _ = InProcess(algorithm, data, START).play(first_state(algorithm, 1), 0.0, 20)
    # The center of one site is that site, penalty or not.
    np.testing.assert_allclose(state.central.center, state.central.params.theta[0], rtol=1e-9)


def test_site_names_are_the_federations():
    data = CASE.federation(1, (5, 6), names=["b", "a"])
    assert InProcess(FedGrEM(CASE.family), data, START).site_names == ("b", "a")
