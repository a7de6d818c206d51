"""A private fit: what leaves a site is noisy sums and nothing else, and what the center makes of them is good."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import linear_sum_assignment
from sklearn.exceptions import ConvergenceWarning

from fedgrem import FederatedGaussianMixture, FederatedRegressionMixture, FedGrEM, Privacy, load_model, save_model
from fedgrem.algorithms.tgmm import TGMM
from fedgrem.data.federation import Federation
from fedgrem.data.simulate import simulate
from fedgrem.data.units import UnitsPlan
from fedgrem.engines.inprocess import InProcess
from fedgrem.errors import InputError, InputTypeError, PausedError
from fedgrem.families.covariance import Full, Identity, Tied
from fedgrem.families.gaussian import Gaussian
from fedgrem.fit.conversation import Replies
from fedgrem.fit.fit import run
from fedgrem.fit.private import shortened_moments
from fedgrem.fit.private_site import TASKS, PrivateReply, clip_of
from fedgrem.fit.spec import FitSpec, read_ranges
from fedgrem.kernels.privacy import bounded, mu_of
from fedgrem.types import map_arrays

CENTERS = np.array([[-3.0, 0.0, 1.0], [3.0, 2.0, 0.0], [0.0, -3.0, -2.0]])
RANGES = ((-10.0, 10.0),) * 3
ROUGH = Privacy(epsilon=8, ranges=(-10, 10))


def data_of(n_sites=12, n_rows=300, h=0.0, seed=0, n_outliers=0):
    return simulate("gmm", h=h, n_sites=n_sites, n_rows=n_rows, n_outliers=n_outliers, centers=CENTERS, seed=seed)


def spec_of(n_components=3, covariance=Identity, **options):
    units = UnitsPlan(standardize=covariance is not Identity)
    return FitSpec(Gaussian(covariance()), FedGrEM(), n_components, units=units, **({"ranges": RANGES} | options))


def federation(rows):
    return Federation.from_sites(list(rows), list(rows.values()))


def fitted(rows, spec, budgets=None, seed=0, wrap=lambda engine: engine):
    generator = np.random.default_rng(seed)
    engine = InProcess(federation(rows), spec, budgets=budgets, draw=lambda count: generator.normal(size=count))
    return run(spec, wrap(engine))


def error_of(theta, truth):
    """Largest over sites and components, up to one relabelling of all."""
    square = np.square(theta[:, :, None] - truth[:, None]).sum(axis=-1)
    return float(np.sqrt(square[:, *linear_sum_assignment(np.median(square, axis=0))]).max())


class Listening:
    """An engine that keeps what is asked and answered, and loses sites at given exchanges."""

    def __init__(self, engine, lost=None):
        self.engine, self.lost, self.asked, self.heard = engine, lost or {}, [], []

    @property
    def site_names(self):
        return self.engine.site_names

    def ask(self, ask):
        replies = self.engine.ask(ask)
        self.asked.append(ask)
        self.heard.append(replies)
        gone = self.lost.get(len(self.asked), ())
        present = replies.present & ~np.isin(self.site_names, gone)
        mail = map_arrays(
            lambda leaf: np.where(present.reshape(-1, *(1,) * (leaf.ndim - 1)), leaf, np.nan), replies.mail
        )
        return Replies(present, mail)


# -- what leaves


@pytest.mark.parametrize("covariance", [Identity, Tied])
def test_a_fit_asks_its_few_tasks_as_often_as_they_are_paid_for_and_nothing_else(covariance):
    heard = []
    fitted(data_of(4).rows, spec_of(covariance=covariance), wrap=lambda e: heard.append(Listening(e)) or heard[0])
    tasks = [ask.task for ask in heard[0].asked]
    assert tasks == [task for task, work in TASKS.items() for _ in range(work.times)]
    assert all(type(replies.mail) is PrivateReply for replies in heard[0].heard)
    assert sum(work.share for work in TASKS.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("covariance", [Identity, Tied])
def test_rows_are_not_shortened_further_where_the_order_is_an_honest_one(covariance):
    spec, heard = spec_of(covariance=covariance), []
    rows = data_of(3).rows
    fitted(rows, spec, wrap=lambda e: heard.append(Listening(e)) or heard[0])
    for ask in heard[0].asked:
        vectors = TASKS[ask.task].vectors(spec, rows["site-01"], map_arrays(lambda leaf: leaf[0], ask.mail))
        length = np.linalg.norm(vectors, axis=1)
        assert length.max() <= 1.0 + 1e-9
        assert length.max() > 0.3, "budget is left unused"


@pytest.mark.parametrize("wild", [np.nan, np.inf, 1e300, 0.0])
def test_no_order_makes_a_row_count_for_more(wild):
    spec, heard = spec_of(covariance=Tied), []
    rows = data_of(3).rows
    fitted(rows, spec, wrap=lambda e: heard.append(Listening(e)) or heard[0])
    for ask in heard[0].asked:
        mail = map_arrays(lambda leaf: np.full(leaf.shape[1:], wild), ask.mail)
        with np.errstate(all="ignore"):
            vectors = bounded(TASKS[ask.task].vectors(spec, rows["site-01"], mail))
        assert (np.linalg.norm(vectors, axis=1) <= 1.0 + 1e-9).all()


def test_a_cell_counts_as_if_it_were_at_the_bound_that_it_is_beyond():
    rows, spec = data_of(3).rows, spec_of()
    far = rows | {"site-01": rows["site-01"].copy()}
    far["site-01"][0], told = 1e9, []
    near = far | {"site-01": np.clip(far["site-01"], -10.0, 10.0)}
    for some in (far, near):
        told.append(fitted(some, spec, {name: 1.0 for name in some}))
    np.testing.assert_array_equal(told[0].theta, told[1].theta)


def test_noise_is_never_from_the_seed():
    rows = data_of(4).rows
    one, other = (
        FederatedGaussianMixture(3, covariance_type="identity", privacy=ROUGH, random_state=0).fit(rows)
        for _ in range(2)
    )
    assert not np.array_equal(one.means_, other.means_)
    assert not np.array_equal(one.n_rows_, np.full(4, 300.0)), "the number of rows is private, too"


def advantage_of(epsilon, delta, trials):
    """Of an attacker who knows all rows but one, from all that its site says in a fit: the best test there is."""
    generator = np.random.default_rng(0)
    rows = {"a": generator.normal(size=(12, 1)), "b": generator.normal(size=(12, 1))}
    rows["a"][0] = 4.0
    without = rows | {"a": rows["a"][1:]}
    spec = spec_of(1, ranges=((-5.0, 5.0),))
    budgets = dict.fromkeys(rows, mu_of(epsilon, delta))

    def log_ratio(some, seed):
        heard = []
        fitted(some, spec, budgets, seed, wrap=lambda e: heard.append(Listening(e)) or heard[0])
        total = 0.0
        for ask, replies in zip(heard[0].asked, heard[0].heard, strict=True):
            mail = map_arrays(lambda leaf: leaf[0], ask.mail)
            vectors = bounded(TASKS[ask.task].vectors(spec, np.clip(rows["a"], -5.0, 5.0), mail))
            told = replies.mail.noisy[0] - vectors[1:].sum(axis=0)
            total += (told @ vectors[0] - 0.5 * vectors[0] @ vectors[0]) / replies.mail.added[0] ** 2
        return total

    there, gone = (np.array([log_ratio(some, seed) for seed in range(trials)]) for some in (rows, without))
    return float(np.mean(there > 0) - np.mean(gone > 0)), there.std() / budgets["a"]


def test_an_attacker_who_knows_all_but_one_row_gains_from_a_whole_fit_no_more_than_epsilon_allows():
    epsilon, delta, trials = 1.0, 1e-5, 120
    advantage, spent = advantage_of(epsilon, delta, trials)
    assert advantage < (np.exp(epsilon) - 1.0 + 2.0 * delta) / (np.exp(epsilon) + 1.0) + 3.0 / np.sqrt(trials)
    # Likelihood ratios are those of one Gaussian mechanism of at most this mu, and not of a much smaller one.
    assert 0.75 < spent < 1.25


def test_that_attack_finds_the_row_where_the_budget_is_large():
    advantage, spent = advantage_of(60.0, 1e-5, 20)
    assert advantage > 0.9
    assert 0.6 < spent < 1.5


# -- what the center makes of it


@pytest.mark.parametrize("covariance", [Identity, Tied])
def test_without_noise_a_private_fit_is_about_an_ordinary_one(covariance):
    truth = data_of(h=0.3)
    result = fitted(truth.rows, spec_of(covariance=covariance))
    theta = result.theta if result.location is None else result.theta * result.scale + result.location
    plain = FederatedGaussianMixture(3, covariance_type=covariance.name, random_state=0).fit(truth.rows)
    assert error_of(theta, truth.theta) < 1.3 * error_of(plain.means_, truth.theta)
    np.testing.assert_allclose(np.sort(result.weights), np.sort(plain.weights_), atol=0.06)


@pytest.mark.parametrize("covariance", [Identity, Tied])
def test_a_private_fit_of_many_rows_is_close_to_the_truth(covariance):
    truth = data_of(30, 500)
    result = fitted(truth.rows, spec_of(covariance=covariance), dict.fromkeys(truth.rows, mu_of(4.0, 1e-6)))
    theta = result.theta if result.location is None else result.theta * result.scale + result.location
    assert error_of(theta, truth.theta) < 0.1
    if covariance is Tied:
        within = Tied().matrices(result.center_noise, 3)[0] * np.outer(result.scale, result.scale)
        np.testing.assert_allclose(within, np.eye(3), atol=0.15)


def test_columns_of_any_units_do_as_well():
    truth = data_of(30, 500)
    scale, shift = np.array([1e-3, 1.0, 1e4]), np.array([0.0, 50.0, -1e5])
    rows = {name: x * scale + shift for name, x in truth.rows.items()}
    ranges = tuple(zip(shift - 10.0 * scale, shift + 10.0 * scale, strict=True))
    budgets = dict.fromkeys(rows, mu_of(8.0, 1e-6))
    result = fitted(rows, spec_of(covariance=Tied, ranges=ranges), budgets)
    theta = (result.theta * result.scale + result.location - shift) / scale
    assert error_of(theta, truth.theta) < 0.1


def test_more_budget_is_more_accurate_and_the_standard_errors_know_it():
    truth, errors, said = data_of(12, 300), [], []
    for epsilon in (1.0, 100.0):
        result = fitted(truth.rows, spec_of(), dict.fromkeys(truth.rows, mu_of(epsilon, 1e-6)))
        errors.append(error_of(result.theta, truth.theta))
        said.append(np.sqrt(np.trace(result.center_covariance, axis1=1, axis2=2)).mean())
    assert errors[1] < errors[0]
    assert said[1] < 0.7 * said[0]


def test_standard_errors_of_centers_are_about_right():
    apart = []
    for seed in range(10):
        truth = data_of(10, 300, seed=seed)
        result = fitted(truth.rows, spec_of(), dict.fromkeys(truth.rows, mu_of(4.0, 1e-6)), seed)
        square = np.square(result.center[:, None] - CENTERS).sum(axis=-1)
        order = linear_sum_assignment(square)[1]
        variance = np.diagonal(result.center_covariance, axis1=1, axis2=2)
        apart.append((result.center - CENTERS[order]) / np.sqrt(variance))
    assert 0.8 < np.std(apart) < 1.4


def test_sites_may_have_different_budgets_and_some_none():
    truth = data_of(20, 300)
    strict = dict.fromkeys(list(truth.rows)[:10], mu_of(0.2, 1e-6))
    mixed = fitted(truth.rows, spec_of(), strict)
    alike = fitted(truth.rows, spec_of(), dict.fromkeys(truth.rows, mu_of(0.2, 1e-6)))
    assert error_of(mixed.theta, truth.theta) < 0.15 < error_of(alike.theta, truth.theta)
    say = mixed.influence.weight
    assert say[:10].max() < 0.5 * say[10:].min(), "who adds more noise has less of a say"


def test_a_hostile_site_does_no_harm_and_is_suspect():
    truth = data_of(20, 300, n_outliers=1)
    model = FederatedGaussianMixture(3, covariance_type="identity", privacy=ROUGH, random_state=0).fit(truth.rows)
    assert model.site_verdict_[-1] == "suspect"
    assert (model.site_verdict_[:-1] != "suspect").mean() > 0.8
    assert error_of(model.means_[:-1], truth.theta[:-1]) < 0.35
    assert "suspect: site-20" in " ".join(model.summary().split())


def test_a_site_that_is_lost_is_out_and_gets_what_the_others_have_in_common():
    truth = data_of(8)
    heard = []
    result = fitted(
        truth.rows, spec_of(), dict.fromkeys(truth.rows, 2.0),
        wrap=lambda e: heard.append(Listening(e, {6: ["site-03"]})) or heard[0],
    )  # fmt: skip
    assert [ask.to is None for ask in heard[0].asked] == [True] * 6 + [False] * 2
    assert not heard[0].asked[-1].to[2]
    np.testing.assert_array_equal(result.theta[2], result.center)
    assert np.isnan(result.look["p_value"][2])
    assert result.influence.weight[2].max() == 0.0
    assert error_of(result.theta, truth.theta) < 0.5


def test_a_fit_without_sites_pauses():
    lost = {3: [f"site-{k:02d}" for k in range(1, 4)]}
    with pytest.raises(PausedError, match="no site is left"):
        fitted(data_of(3).rows, spec_of(), wrap=lambda e: Listening(e, lost))


def test_noise_alone_does_not_break_a_fit():
    rows = {name: x[:6] for name, x in data_of(3).rows.items()}
    result = fitted(rows, spec_of(covariance=Tied), dict.fromkeys(rows, mu_of(0.05, 1e-6)))
    for name in ("theta", "weights", "center", "noise", "distance", "n_rows"):
        assert np.isfinite(getattr(result, name)).all(), name
    assert not result.converged
    assert np.isnan(result.center_covariance).all(), "nothing can be said"
    assert (np.abs(result.center * result.scale + result.location) <= 10.0 + 1e-9).all(), "means are where rows can be"


def test_a_fit_that_is_lost_in_noise_says_so():
    rows = {name: x[:20] for name, x in data_of(3).rows.items()}
    strict = Privacy(0.1, ranges=(-10, 10))
    with pytest.warns(ConvergenceWarning, match="lost in noise, .* give more epsilon, rows or sites"):
        model = FederatedGaussianMixture(3, covariance_type="identity", privacy=strict).fit(rows)
    assert "lost in noise" in " ".join(model.summary().split())
    assert model.means_se_ is not None
    assert FederatedGaussianMixture(2, privacy=ROUGH, standard_errors=False).fit(data_of(6).rows).means_se_ is None


def test_a_fit_of_few_rows_that_has_lost_a_component_says_so_and_others_do_not():
    spec, lost = spec_of(5, ranges=((-10.0, 10.0),) * 10), 0
    for seed in range(25):
        truth = simulate("gmm", h=1.0, n_sites=10, n_rows=150, n_outliers=0, seed=seed)
        result = fitted(truth.rows, spec, dict.fromkeys(truth.rows, mu_of(6.0, 1e-6)), seed)
        bad = error_of(result.theta, truth.theta) > 2.0
        assert bad != result.converged
        lost += bad
    assert lost >= 2


@pytest.mark.parametrize("size", [1, 2, 10])
def test_the_moments_of_shortened_vectors_are_those_of_drawn_ones(size):
    limit, generator = clip_of(size), np.random.default_rng(0)
    drawn = generator.normal(size=(200_000, size))

    def shortened(x):
        return x * np.minimum(1.0, limit / np.linalg.norm(x, axis=1, keepdims=True))

    slope, variance = shortened_moments(size, limit)
    shift = np.eye(size)[0] * 0.1
    moved = (shortened(drawn + shift) - shortened(drawn - shift)).mean(axis=0)[0] / 0.2
    assert slope == pytest.approx(moved, abs=0.01)
    assert variance == pytest.approx(np.square(shortened(drawn)).mean(), rel=0.01)


# -- as an option


def test_a_private_model_is_saved_and_comes_back(tmp_path):
    frames = {name: pd.DataFrame(x, columns=["a", "b", "c"]) for name, x in data_of(4).rows.items()}
    bounds = {"c": (-10, 10), "a": (-9, 9), "b": (-8, 8)}
    model = FederatedGaussianMixture(3, privacy=Privacy(dict.fromkeys(frames, 8.0), 1e-5, bounds), random_state=0)
    model.fit(frames)
    again = load_model(save_model(model, tmp_path / "model"))
    assert again.privacy.ranges_of(["a", "b", "c"]) == ((-9.0, 9.0), (-8.0, 8.0), (-10.0, 10.0))
    assert again.privacy.epsilon == dict.fromkeys(frames, 8.0)
    np.testing.assert_array_equal(again.means_, model.means_)
    with pytest.raises(InputError, match="one more site would not be private"):
        again.fit_site(frames["site-01"], name="late")


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"privacy": 4.0}, InputTypeError, r"privacy must be None or Privacy\(epsilon=..., delta=..., ranges=...\)"),
        ({"privacy": Privacy(4)}, InputError, "a private fit needs the bounds of every column"),
        ({"privacy": Privacy(0, ranges=(0, 1))}, InputError, "epsilon must be above 0"),
        ({"privacy": Privacy(-1, ranges=(0, 1))}, InputError, "epsilon must be above 0"),
        ({"privacy": Privacy(np.nan, ranges=(0, 1))}, InputError, "epsilon must be above 0"),
        ({"privacy": Privacy("4", ranges=(0, 1))}, InputTypeError, "epsilon must be a number, got '4'"),
        ({"privacy": Privacy(4, 0.0, (0, 1))}, InputError, "delta must be above 0 and small"),
        ({"privacy": Privacy(4, ranges=(1, 0))}, InputError, "the range of column number 0 is 1 to 0"),
        ({"privacy": Privacy(4, ranges=[(0, 1)] * 2)}, InputError, "there are 2 ranges and 3 columns"),
        ({"privacy": Privacy(4, ranges={"x0": (0, 1), "z": (0, 1)})}, InputError, "lack x1, x2 and name z"),
        ({"privacy": Privacy(ranges=(0, 1))}, InputError, "epsilon is missing"),
        ({"privacy": Privacy({"site-01": 4}, ranges=(0, 1))}, InputError, "site-02, .* is in one list only"),
        ({"covariance_type": "full"}, InputError, "covariance_type='tied' or 'identity', got .*'full'"),
        ({"n_components": [2, 3]}, InputError, "a private fit is of one number of components"),
        ({"algorithm": TGMM()}, InputError, "its own few steps and the default center rule"),
        ({"algorithm": FedGrEM(center="huber")}, InputError, "its own few steps and the default center rule"),
        ({"penalty": 2.0}, InputError, "a private fit does not go with penalty"),
        ({"missing": "em"}, InputError, "a private fit does not go with missing"),
        ({"secure_sums": True}, InputError, "a private fit does not go with secure_sums"),
        ({"means_init": np.zeros((4, 3, 3)), "weights_init": np.ones((4, 3)) / 3}, InputError, "finds its own starts"),
    ],
)
def test_what_cannot_be_private_is_refused_with_what_to_do(options, error, told):
    with pytest.raises(error, match=told):
        FederatedGaussianMixture(**{"n_components": 3, "privacy": ROUGH, **options}).fit(data_of(4).rows)


def test_rows_that_count_for_more_are_refused():
    rows = data_of(3).rows
    weight = {name: np.full(len(x), 2.0) for name, x in rows.items()}
    with pytest.raises(InputError, match="leave out sample_weight, or privacy"):
        FederatedGaussianMixture(3, privacy=ROUGH).fit(rows, sample_weight=weight)


def test_regressions_have_no_such_option():
    with pytest.raises(TypeError, match="privacy"):
        FederatedRegressionMixture(2, privacy=ROUGH)


def test_other_families_are_refused_by_the_center():
    with pytest.raises(InputError, match="got the family 'gaussian' with 'full'"):
        run(spec_of(covariance=Full), InProcess(federation(data_of(3).rows), spec_of(covariance=Full)))


@pytest.mark.parametrize("value", [[], [(0, 1, 2)], [("a", 1)], [(0, np.inf)], 3, [(1, 1)]])
def test_ranges_that_are_none_are_refused(value):
    with pytest.raises(InputError, match="range"):
        read_ranges(value)


def test_a_spec_with_ranges_is_not_equal_to_one_without():
    assert spec_of() != replace(spec_of(), ranges=None)
