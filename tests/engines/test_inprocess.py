"""The in-process engine: sites in any number of buckets, answered in site order."""

import jax.numpy as jnp
import numpy as np
import pytest
from fedgrem.algorithms.rounds import LoopState
from fedgrem.algorithms.start import StartPlan

from fedgrem.algorithms.base import Engine
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.algorithms.local import LocalEM
from fedgrem.algorithms.pooled import PooledEM
from fedgrem.data import federation as federation_module
from fedgrem.engines import InProcess, inprocess
from fedgrem.engines.inprocess import BLOCK, _all_at_once, _group_by_group
from fedgrem.types import Broadcast, Params, StartRequest
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


def test_sites_group_by_group_answer_as_all_at_once(monkeypatch):
    (bucket,), _ = CASE.federation(1, (20, 17, 20, 19, 18)).stacked()
    factor = jnp.arange(5.0)

    def step(data, sent):
        return sent * (data.columns @ data.row_weight), data.row_weight.sum()

    expected = _all_at_once(step, bucket, factor)
    monkeypatch.setattr(inprocess, "ROWS_AT_ONCE", 64)  # two sites at a time, and one left over
    for found, wanted in zip(_group_by_group(step, bucket, factor), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_rows_are_stacked_once_for_all_algorithms_of_a_kind():
    data = CASE.federation(1, SIZES)
    engine, pot = (InProcess(algorithm(CASE.family), data, START) for algorithm in (FedGrEM, PooledEM))
    other = engine.serving(LocalEM(CASE.family))
    assert other._buckets is engine._buckets
    message = sent(5)
    fresh = InProcess(LocalEM(CASE.family), data, START).ask("local_step", message)
    np.testing.assert_array_equal(other.ask("local_step", message).params.theta, fresh.params.theta)
    with pytest.raises(ValueError, match="in one pot"):
        engine.serving(PooledEM(CASE.family))
    with pytest.raises(ValueError, match="not in one pot"):
        engine.pot_as_site(LocalEM(CASE.family), START)
    assert pot.pot_as_site(LocalEM(CASE.family), START).site_names == (min(data.names),)


def test_a_pot_searches_as_one_site_for_the_start_that_it_gives_everyone():
    data, start = CASE.federation(1, SIZES), StartPlan(n_components=2, n_init=2, short=2, long=2, restart_rows=50)
    pot = InProcess(PooledEM(CASE.family), data, start)
    keys = jnp.arange(10, dtype=jnp.uint32).reshape(5, 2)
    nothing = Params(jnp.zeros((5, 0)), jnp.zeros((5, 0)))
    everyone = pot.ask("local_start", StartRequest(keys, nothing, jnp.zeros(5)))
    first = data.names.index(min(data.names))
    alone = StartRequest(keys[first : first + 1], Params(jnp.zeros((1, 0)), jnp.zeros((1, 0))), jnp.zeros(1))
    reply = pot.pot_as_site(LocalEM(CASE.family), start).ask("local_start", alone)
    assert reply.n_rows.tolist() == [sum(SIZES)]
    np.testing.assert_array_equal(everyone.params.theta, np.broadcast_to(reply.params.theta, (5, 2, 2)))
