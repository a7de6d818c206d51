"""Graphs, and means that neighbours find by themselves: exact, the same to the bit, with links that fail and lies."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgrem.kernels.gossip import Sent, agree, lines_of, plan_of
from fedgrem.kernels.graphs import diameter, diameter_after_a_loss, erdos_renyi, grid, metropolis, parts, ring, star

PRECISION = 1e-12
GRAPHS = {
    "ring of 3": ring(3),
    "ring of 10": ring(10),
    "grid of 12": grid(12),
    "star of 8": star(8),
    "random graph of 50": erdos_renyi(50, np.random.default_rng(0)),
    "complete graph of 6": ~np.eye(6, dtype=bool),
}


def everything(lines):
    """All that is sent arrives."""

    def exchange(sent, step):
        return Sent(*(leaf[lines.speaks] for leaf in sent)), np.ones(len(lines.speaks), dtype=bool)

    return exchange


def found(graph, values, limit, change=None):
    """The agreement of all sites; ``change(sent, there, lines, step)`` rewrites what arrives, in place."""
    plan = plan_of(graph, PRECISION)
    lines = lines_of(plan, np.arange(len(graph)))
    whole = everything(lines)

    def exchange(sent, step):
        heard, there = whole(sent, step)
        if change is not None:
            change(heard, there, lines, step)
        return heard, there

    return agree(values, plan, lines, exchange, limit), plan, lines


# -- graphs


def test_graphs_are_what_their_names_say():
    assert ring(10).sum(axis=1).tolist() == [2] * 10
    assert star(5).sum(axis=1).tolist() == [4, 1, 1, 1, 1]
    assert grid(12).sum() // 2 == 17  # three by four
    for graph in GRAPHS.values():
        np.testing.assert_array_equal(graph, graph.T)
        assert not graph.diagonal().any()
        assert len(parts(graph)) == 1


def test_how_far_apart_sites_are_and_may_get():
    assert diameter(ring(10)) == 5
    assert diameter_after_a_loss(ring(10)) == 10  # nine links in a row; an edge can double the five
    assert diameter(star(7)) == 2
    assert [piece.tolist() for piece in parts(np.kron(np.eye(2), np.ones((2, 2))) > 0)] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("name", GRAPHS)
def test_metropolis_weights_keep_the_mean_and_shrink_everything_else(name):
    weights = metropolis(GRAPHS[name])
    np.testing.assert_allclose(weights.sum(axis=0), 1.0)
    np.testing.assert_array_equal(weights, weights.T)
    assert (weights >= 0).all()
    values = np.abs(np.linalg.eigvalsh(weights))
    assert np.sum(values > 1 - 1e-9) == 1


# -- the mean


@pytest.mark.parametrize("name", GRAPHS)
def test_all_find_the_mean_and_the_same_to_the_bit(name):
    graph = GRAPHS[name]
    values = np.random.default_rng(1).normal(size=(len(graph), 7)) * [1e-6, 1.0, 1e6, 1, 1, 1, 1]
    limit = np.abs(values).max(axis=0)
    told, plan, _ = found(graph, values, limit)
    assert not told.void.any()
    assert not told.failed.any()
    np.testing.assert_array_equal(told.mean, np.broadcast_to(told.mean[0], values.shape))
    assert (np.abs(told.mean - values.mean(axis=0)) <= 2 * PRECISION * limit).all()
    assert plan.across >= diameter(graph)


def test_chebyshev_polynomials_spare_most_of_the_steps_of_plain_gossip():
    plan = plan_of(ring(50), PRECISION)
    plain = np.log(PRECISION) / np.log(plan.middle + plan.half)
    assert plan.steps < plain / 10


@settings(max_examples=40, deadline=None)
@given(st.integers(3, 14), st.integers(0, 10_000))
def test_what_an_honest_site_sends_is_never_taken_for_a_lie(count, seed):
    generator = np.random.default_rng(seed)
    graph = erdos_renyi(count, generator)
    limit = np.array([1.0, 1e4, np.inf, 0.0, 1e-9])
    values = generator.choice([-1.0, 1.0], size=(count, 5)) * np.where(np.isfinite(limit), limit, 1e12)
    told, _, _ = found(graph, values, limit)
    assert not told.void.any()
    assert not told.failed.any()


def test_one_site_by_itself_finds_what_all_in_one_process_find():
    graph, values, limit = grid(6), np.random.default_rng(0).normal(size=(6, 3)), np.full(3, 9.0)
    heard = []

    def note(sent, there, lines, step):
        heard.append(Sent(*(leaf.copy() for leaf in sent)))

    told, plan, lines = found(graph, values, limit, note)
    for k in range(6):
        mine = lines.hears == k

        def arriving(sent, step, mine=mine):
            return Sent(*(leaf[mine] for leaf in heard[step])), np.ones(mine.sum(), dtype=bool)

        alone = agree(values[[k]], plan, lines_of(plan, np.array([k])), arriving, limit)
        np.testing.assert_array_equal(alone.mean[0], told.mean[k])


# -- links that fail, and lies


def silent(first, ends):
    """A link, or all of a site, that brings nothing from a step on."""

    def change(heard, there, lines, step):
        if step >= first:
            here = np.isin(lines.places[lines.hears], ends) & np.isin(lines.speaks, ends)
            if len(ends) == 1:
                here = (lines.places[lines.hears] == ends[0]) | (lines.speaks == ends[0])
            there[here] = False

    return change


@pytest.mark.parametrize("name", ["ring of 10", "grid of 12", "random graph of 50"])
@pytest.mark.parametrize("ends", [(0, 1), (3,)], ids=["edge", "site"])
def test_whenever_a_link_fails_all_judge_the_mean_alike_and_know_what_failed(name, ends):
    graph = GRAPHS[name].copy()
    if len(ends) == 2:
        graph[ends[0], ends[1]] = graph[ends[1], ends[0]] = True
    values = np.random.default_rng(0).normal(size=(len(graph), 2))
    rest = np.arange(len(graph)) if len(ends) == 2 else np.delete(np.arange(len(graph)), ends)
    plan = plan_of(graph, PRECISION)
    verdicts = set()
    for first in range(0, plan.all_steps, 2 if len(graph) < 20 else 7):
        told, plan, lines = found(graph, values, np.full(2, 9.0), silent(first, ends))
        void = told.void[rest]
        assert void.all() or not void.any(), first
        verdicts.add(bool(void[0]))
        if void[0]:
            lost = np.unique(lines.link[np.isin(lines.speaks, ends) & np.isin(lines.places[lines.hears], ends)])
            if len(ends) == 1:
                lost = np.unique(lines.link[lines.speaks == ends[0]])
            assert (told.failed[rest] == np.isin(np.arange(lines.n_links), lost)).all()
        else:
            assert first >= plan.steps + plan.across
            np.testing.assert_array_equal(told.mean[rest], np.broadcast_to(told.mean[rest[0]], told.mean[rest].shape))
            np.testing.assert_allclose(told.mean[rest], values.mean(axis=0)[None].repeat(len(rest), 0), atol=1e-11)
    assert verdicts == {True, False}


@pytest.mark.parametrize("lie", [np.nan, np.inf, 1e6, -1e6])
@pytest.mark.parametrize("first", [0, 1, 20, 47, 50])
def test_a_link_that_brings_what_no_honest_site_could_send_has_failed(lie, first):
    def change(heard, there, lines, step):
        if step == first:
            heard.values[lines.speaks == 4] = lie

    values = np.random.default_rng(0).uniform(-1, 1, size=(10, 2))
    told, _, lines = found(ring(10), values, np.ones(2), change)
    assert told.void.all()
    assert (told.failed == np.isin(np.arange(lines.n_links), lines.link[lines.speaks == 4])).all()


def test_what_a_site_may_add_on_the_way_gets_less_step_by_step():
    plan = plan_of(ring(10), PRECISION)
    ratio = plan.shrinkage[1:] / plan.shrinkage[:-1]
    assert (ratio < 0.9).all()
    assert plan.shrinkage[-1] * np.sqrt(10) <= PRECISION
