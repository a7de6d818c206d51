"""A fit without a server: the server's answer, a lost site, a lost edge, sites that lie, and graphs that are none."""

from dataclasses import replace

import numpy as np
import pytest

from fedgrem import Decentralized, FederatedGaussianMixture, FederatedRegressionMixture
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.data.federation import Federation
from fedgrem.data.simulate import simulate
from fedgrem.engines.decentralized import KINDS, AmongNeighbours, carry
from fedgrem.engines.inprocess import InProcess
from fedgrem.errors import InputError, PausedError, SitesError
from fedgrem.families.covariance import Diagonal
from fedgrem.families.gaussian import Gaussian
from fedgrem.families.poisson import Poisson
from fedgrem.families.regression import LinearRegression
from fedgrem.fit.fit import run
from fedgrem.fit.sums_site import WORK, Work, packed
from fedgrem.kernels.center import MOST_ROWS
from fedgrem.kernels.graphs import ring
from fedgrem.types import Params, map_arrays
from tests.conformance.families import GAUSSIAN
from tests.fit.test_sums import spec_of

SIZES = (40, 30, 50, 45, 35, 60, 33)
DATA = GAUSSIAN.federation(1, SIZES)


def plain_spec(data=DATA, *args, **options):
    return replace(spec_of(data, *args, **options), secure_sums=False)


def server(spec, data=DATA):
    return run(spec, InProcess(data, spec))


def gossip(spec, data=DATA, graph=None, **options):
    engine = AmongNeighbours(data, spec, ring(len(data.sites)) if graph is None else graph, **options)
    return engine.run(), engine


# -- the same fit


@pytest.mark.parametrize("graph", KINDS)
def test_the_center_is_the_servers_whatever_the_graph(graph):
    for rounds, tol in ((1, 0.0), (500, 1e-11)):
        spec = plain_spec(max_rounds=rounds, tol=tol)
        found, expected = Decentralized(graph).fit(spec, DATA), server(spec)
        for name in ("center", "theta", "weights", "distance"):
            np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=0, atol=1e-9, err_msg=name)
    assert found.converged


@pytest.mark.parametrize("case", ["diag", "regression"])
def test_with_a_noise_of_its_own_and_for_regressions_too(case):
    if case == "diag":
        data, spec = DATA, plain_spec(DATA, Gaussian(Diagonal()), noise=np.zeros((2, DATA.n_features)), max_rounds=4)
    else:
        simulated = simulate("mor", h=0.5, n_sites=5, seed=2)
        names = list(simulated.rows)
        data = Federation.from_sites(
            names, [simulated.rows[n] for n in names], [simulated.targets[n] for n in names]
        )  # fmt: skip
        theta = simulated.theta[:4].mean(axis=0)
        spec = plain_spec(data, LinearRegression(noise="unit"), theta=theta, max_rounds=4)
    found, expected = Decentralized("ring").fit(replace(spec, tol=0.0), data), server(replace(spec, tol=0.0), data)
    np.testing.assert_allclose(found.center, expected.center, rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.theta, expected.theta, rtol=0, atol=1e-9)


def test_less_precision_takes_fewer_steps_and_is_as_far_off_as_it_says():
    spec = plain_spec(max_rounds=5, tol=0.0)
    expected, steps = server(spec), []
    for precision in (1e-12, 1e-8):
        found = Decentralized("ring", precision=precision).fit(spec, DATA)
        assert np.abs(found.center - expected.center).max() < max(1e-9, 100 * precision)
        steps.append(found.cost["steps_per_sum"])
    assert steps[1] < steps[0]


def test_estimators_find_starts_units_and_the_penalty_without_a_server_as_with_secure_sums():
    simulated = simulate("gmm", h=0.3, n_sites=6, n_rows=60, seed=3)
    options = {"n_components": 5, "covariance_type": "identity", "random_state": 0, "max_rounds": 30, "tol": 1e-4}
    here = FederatedGaussianMixture(**options).fit(simulated.rows, engine=Decentralized("erdos-renyi"))
    masked = FederatedGaussianMixture(secure_sums=True, **options).fit(simulated.rows)
    # Two starts that lead to the same fit are told apart by rounding: the labels may differ.
    apart = np.linalg.norm(here.center_[:, None] - masked.center_, axis=-1)
    order = apart.argmin(axis=1)
    assert sorted(order) == list(range(5))
    np.testing.assert_allclose(here.means_, masked.means_[:, order], atol=1e-6)
    assert here.penalty_ == masked.penalty_
    np.testing.assert_allclose(here.penalty_path_["gain"], masked.penalty_path_["gain"], atol=1e-6)
    np.testing.assert_array_equal(here.site_verdict_, masked.site_verdict_)
    assert set(here.site_verdict_) <= {"at the center", "similar", "own answer"}


def test_messages_are_counted():
    spec = plain_spec(max_rounds=3, tol=0.0)
    found, engine = gossip(spec)
    cost = found.cost
    assert cost["messages_per_sum"] == cost["steps_per_sum"] * 2 * 7  # each of seven links, both ways
    assert engine.messages == cost["messages"] == engine.steps * 14
    assert cost["messages_per_round"] == round(found.history["passes"].mean() * cost["messages_per_sum"])
    assert cost["sites"] == 7
    assert cost["links"] == 7


# -- links and sites that are lost


def silent(ends, first):
    """A link, or all links of a site, that brings nothing from some step of the fit on."""

    def carried(sent, lines, step):
        heard, there = carry(sent, lines, step)
        if step >= first:
            one, other = np.isin(lines.places[lines.hears], ends), np.isin(lines.speaks, ends)
            there &= ~((one & other) if len(ends) == 2 else (one | other))
        return heard, there

    return carried


def test_an_edge_lost_in_any_step_changes_nothing():
    spec = plain_spec(max_rounds=2, tol=0.0)
    expected, whole = gossip(spec)
    for first in range(0, whole.steps, whole.steps // 9):
        found, engine = gossip(spec, carry=silent((2, 3), first))
        np.testing.assert_allclose(found.center, expected.center, rtol=0, atol=1e-9)
        assert found.cost["sites"] == 7
        assert not engine.graph[2, 3] or first > whole.steps - 20


def test_a_site_lost_in_any_step_is_left_out_and_the_others_go_on():
    spec = plain_spec(max_rounds=2, tol=0.0)
    _, whole = gossip(spec)
    for first in range(0, whole.steps - 20, whole.steps // 9):
        found, engine = gossip(spec, carry=silent((4,), first))
        assert np.isfinite(found.center).all()
        assert found.cost["sites"] == 6
        assert not engine.graph[4].any()


def test_a_fit_that_loses_a_site_at_once_is_the_servers_fit_of_the_others():
    # With an infinite penalty lambda does not depend on the number of sites.
    spec = replace(plain_spec(max_rounds=6, tol=0.0), penalty=np.inf)
    found, _ = gossip(spec, carry=silent((3,), 5))
    rest = Federation(tuple(site for k, site in enumerate(DATA.sites) if k != 3), DATA.columns)
    expected = server(replace(spec, given=map_arrays(lambda leaf: leaf[:6], spec.given)), rest)
    np.testing.assert_allclose(found.center, expected.center, rtol=0, atol=1e-9)


def test_where_the_graph_falls_apart_the_part_with_most_of_the_sites_goes_on_or_none():
    spec = plain_spec(max_rounds=2, tol=0.0)
    links = np.array([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6)])
    line = np.zeros((7, 7), dtype=bool)
    line[links[:, 0], links[:, 1]] = line[links[:, 1], links[:, 0]] = True
    found, _ = gossip(spec, graph=line, carry=silent((4, 5), 30))
    assert found.cost["sites"] == 5
    with pytest.raises(SitesError, match="no part that is left has more than half of the 7 sites"):
        gossip(spec, graph=KINDS["star"](7, 0), carry=silent((0,), 30))
    three = GAUSSIAN.federation(1, SIZES[:3])
    few = plain_spec(three, max_rounds=2, tol=0.0)
    with pytest.raises(PausedError, match=r"2 site\(s\) are left"):
        gossip(few, three, carry=silent((0,), 30))


# -- sites that lie


class Lying(AmongNeighbours):
    """Site 2 rewrites what it adds to the passes."""

    lie = None

    def told(self, ask):
        told, like = super().told(ask)
        if ask.task == "sum_pass":
            told[2] = self.lie(told[2])
        return told, like


def test_a_site_that_does_not_clip_is_not_listened_to_any_more():
    spec = plain_spec(max_rounds=4, tol=0.0)

    class Far(Lying):
        lie = staticmethod(lambda own: own + 1e4)

    engine = Far(DATA, spec, ring(7))
    found = engine.run()
    assert not engine.graph[2].any()
    assert found.cost["sites"] == 6
    assert np.abs(found.center - server(spec).center).max() < 0.3


def test_a_site_that_claims_the_most_that_others_let_pass_moves_the_center_little():
    data = GAUSSIAN.federation(1, SIZES * 2)
    spec = plain_spec(data, max_rounds=10, tol=0.0)
    cap = 0.99 * MOST_ROWS * np.exp(np.log(SIZES).mean())

    class Most(Lying):
        def told(self, ask):
            found, like = AmongNeighbours.told(self, ask)
            if ask.task in ("sum_round", "sum_pass"):
                parts = like.first.theta if ask.task == "sum_round" else like.theta
                penalty = (ask.mail.next_frame if ask.task == "sum_round" else ask.mail.frame).penalty
                most = penalty * np.sqrt(cap)
                lie = parts._replace(
                    total=np.full(2, cap), mass=np.ones(2), slope=np.full((2, 2), most / np.sqrt(2)),
                    strength=np.full(2, most), curvature=np.zeros_like(parts.curvature),
                )  # fmt: skip
                whole = ask.task == "sum_round"
                lie = like._replace(first=like.first._replace(theta=lie)) if whole else like._replace(theta=lie)
                found[2] = packed(map_arrays(lambda leaf: np.asarray(leaf)[None], lie))[0]
            return found, like

    engine = Most(data, spec, ring(14))
    found = engine.run()
    assert engine.graph[2].any()  # nothing that others could see
    assert np.abs(found.center - server(spec, data).center).max() < 0.1


def test_a_site_that_cries_wolf_stops_the_fit_and_that_is_all_it_can_do():
    def crying(sent, lines, step):
        heard, there = carry(sent, lines, step)
        return heard._replace(void=heard.void | (lines.speaks == 1)), there

    with pytest.raises(SitesError, match="too many links have failed"):
        gossip(plain_spec(max_rounds=2, tol=0.0), carry=crying)


# -- graphs


NAMES = ("a", "b", "c", "d", "e")


@pytest.mark.parametrize(
    ("graph", "error", "match"),
    [
        ("cube", InputError, "graph='cube', expected one of ring, grid, star, erdos-renyi, pairs of sites or an array"),
        ([("a", "b"), ("b", "z")], InputError, "links 'z', which is no site; the sites are a, b, c, d, e"),
        ([("a", "b"), ("c", "d")], InputError, r"in 3 parts, .*: a, b; c, d; e\."),
        ([("a", "a")], InputError, "a pair of two different sites"),
        ([("a", "b", "c")], InputError, "a pair of two different sites"),
        (np.ones((4, 4)), InputError, r"shape \(4, 4\), expected \(5, 5\)"),
        (np.triu(np.ones((5, 5)), 1), InputError, "links 'a' with 'b' one way only"),
    ],
)
def test_graphs_that_cannot_be_used_are_refused_by_name(graph, error, match):
    with pytest.raises(error, match=match):
        Decentralized(graph).links(NAMES, 0)


def test_links_may_be_given_by_name_or_as_an_array():
    pairs = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "a")]
    np.testing.assert_array_equal(Decentralized(pairs).links(NAMES, 0), ring(5))
    np.testing.assert_array_equal(Decentralized(ring(5) * 2.5).links(NAMES, 0), ring(5))
    numbered = [(k, (k + 1) % 5) for k in range(5)]
    np.testing.assert_array_equal(Decentralized(np.array(numbered)).links(("0", "1", "2", "3", "4"), 0), ring(5))
    np.testing.assert_array_equal(
        Decentralized("erdos-renyi").links(NAMES, 1), Decentralized("erdos-renyi").links(NAMES, 1)
    )


def test_what_does_not_go_without_a_server_is_refused():
    rows = {f"s{k}": np.random.default_rng(k).normal(size=(20, 2)) for k in range(3)}
    engine = Decentralized("ring")
    with pytest.raises(InputError, match="at least 3, and there are 2"):
        FederatedGaussianMixture(1).fit({n: rows[n] for n in ("s0", "s1")}, engine=engine)
    with pytest.raises(InputError, match="leave out one of the two"):
        FederatedGaussianMixture(1, secure_sums=True).fit(rows, engine=engine)
    with pytest.raises(InputError, match="n_components='auto'; give a number"):
        FederatedGaussianMixture("auto").fit(rows, engine=engine)
    with pytest.raises(InputError, match="fits without a server find Huber's center"):
        FederatedGaussianMixture(1, algorithm=FedGrEM(center="krum")).fit(rows, engine=engine)
    with pytest.raises(InputError, match="precision must be between 0 and 1, got 2"):
        FederatedGaussianMixture(1).fit(rows, engine=Decentralized("ring", precision=2.0))
    with pytest.raises(InputError, match="over='mail', expected one of 'in-process', 'flare-simulator'"):
        FederatedGaussianMixture(1).fit(rows, engine=Decentralized("ring", over="mail"))
    with pytest.raises(InputError, match="or Decentralized"):
        FederatedGaussianMixture(1).fit(rows, engine=ring(3))
    with pytest.raises(InputError, match="do not go with intercept='site' yet; leave it out, or leave out engine"):
        FederatedRegressionMixture(1, intercept="site").fit(rows, {n: r[:, 0] for n, r in rows.items()}, engine=engine)
    with pytest.raises(InputError, match="not for 'poisson'"):
        gossip(plain_spec(DATA, Poisson()))
    apart = plain_spec()
    apart = replace(apart, given=Params(apart.given.weights, apart.given.theta + np.arange(7.0)[:, None, None]))
    with pytest.raises(InputError, match="with fits without a server sites begin alike"):
        gossip(apart)


def test_a_number_that_is_none_is_refused_by_the_name_of_the_site(monkeypatch):
    spec = plain_spec(max_rounds=2, tol=0.0)

    def overflowing(spec, stack, held, content, perform):
        held = begun(spec, stack, held, content, perform)[1]
        return np.where(np.array(stack.names)[:, None] == "site-2", np.nan, 1.0), held

    begun = WORK["sum_begin"].do
    monkeypatch.setitem(WORK, "sum_begin", Work(overflowing, remembers=False))
    with pytest.raises(InputError, match="site 'site-2' would add what is not a number"):
        gossip(spec)
