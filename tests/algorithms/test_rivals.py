"""The systems FedGrEM is compared with: each agrees with its formulas."""

import numpy as np
import pytest

from fedgrem.algorithms.base import Pull
from fedgrem.algorithms.fedem import FedEM
from fedgrem.algorithms.fedem_sa import FedEMSA
from fedgrem.algorithms.fedgmm import FedGMM
from fedgrem.algorithms.local import LocalEM, LocalGrEM
from fedgrem.algorithms.registry import ALGORITHMS
from fedgrem.algorithms.tgmm import TGMM
from fedgrem.data.federation import Federation, Site
from fedgrem.data.simulate import simulate
from fedgrem.engines.inprocess import InProcess
from fedgrem.fit.conversation import Agreed, Ask
from fedgrem.fit.fit import run
from fedgrem.fit.spec import FitSpec
from fedgrem.kernels.scores import parameter_errors
from fedgrem.types import Params, map_arrays
from tests.conformance import numpy_rivals
from tests.conformance.engines import fit, spec_for
from tests.conformance.families import BY_NAME, FAMILIES, GAUSSIAN, REGRESSION

SIZES = (12, 40, 23)
FORMULAS = {GAUSSIAN: numpy_rivals.GAUSSIAN, REGRESSION: numpy_rivals.REGRESSION}
PLAIN_SA = {"approximation_step": 1.0, "keep": 1.0, "levels": 0, "participation": 1.0}
"""Nothing compressed, everyone taking part: each round is one step of EM with shared components."""
FEDERATED = [name for name, one in ALGORITHMS.items() if not one.traits.pools_rows]
paper = pytest.mark.parametrize("case", [GAUSSIAN, REGRESSION], ids=repr)


def example(case, seed=1, sizes=SIZES):
    return case.federation(seed, sizes), case.near(seed, len(sizes))


def plain_rows(data):
    return [(site.rows, np.zeros(len(site.rows)) if site.target is None else site.target) for site in data.sites]


def assert_agree(result, weights, theta, accuracy=1e-8):
    np.testing.assert_allclose(result.weights, weights, rtol=0, atol=accuracy)
    np.testing.assert_allclose(result.theta, theta, rtol=0, atol=accuracy)


# -- agreement with the formulas


@pytest.mark.parametrize(
    ("algorithm", "options", "formula"),
    [
        (LocalEM(), {}, numpy_rivals.local_em),
        (LocalGrEM(step_size=0.8), {"step_size": 0.8}, numpy_rivals.local_grem),
        (FedEM(), {}, numpy_rivals.fedem),
        (FedEM(averaging="plain"), {"averaging": "plain"}, numpy_rivals.fedem),
        (TGMM(), {}, numpy_rivals.tgmm),
        (TGMM(transfer=1.5), {"transfer": 1.5}, numpy_rivals.tgmm),
    ],
    ids=lambda value: getattr(value, "__name__", repr(value)),
)
@paper
def test_it_agrees_with_a_plain_transcription_of_its_formulas(case, algorithm, options, formula):
    data, start = example(case)
    actual = fit(case, data, algorithm, start, rounds=5)
    assert_agree(actual, *formula(FORMULAS[case], plain_rows(data), *start, rounds=5, **options))


@pytest.mark.parametrize("algorithm", [FedEMSA(**PLAIN_SA), FedGMM(covariate_components=1, averaging="mass")], ids=repr)
@paper
def test_exact_em_with_shared_components_is_that(case, algorithm):
    if case is GAUSSIAN and isinstance(algorithm, FedGMM):
        return  # which estimates full covariances
    data, start = example(case)
    actual = fit(case, data, algorithm, start, rounds=5)
    assert_agree(actual, *numpy_rivals.shared_em(FORMULAS[case], plain_rows(data), *start, rounds=5))


def test_joint_mixture_averaged_by_rows_is_fedem_where_covariates_say_nothing():
    data, start = example(REGRESSION)
    joint = fit(REGRESSION, data, FedGMM(covariate_components=1, averaging="rows"), start, rounds=5)
    fedem = fit(REGRESSION, data, FedEM(), start, rounds=5)
    np.testing.assert_allclose(joint.theta, fedem.theta, rtol=0, atol=1e-8)


def test_a_far_site_says_nothing_of_components_that_hold_none_of_its_rows():
    generator = np.random.default_rng(3)
    centers = np.array([[0.0, 0.0], [6.0, 0.0]])
    rows = [centers[generator.integers(2, size=40)] + generator.normal(size=(40, 2)) for _ in range(20)]
    rows.append(generator.normal([20.0, 30.0], size=(40, 2)))
    data = Federation.from_sites([f"site-{k}" for k in range(21)], rows)
    start = np.full((21, 2), 0.5), np.repeat(centers[None], 21, axis=0)
    found = fit(GAUSSIAN, data, FedEM(), start, rounds=2).center
    # All of its rows are the second's, which they have in part; of the first it has fewer than 1e-20.
    assert np.linalg.norm(found[0]) < 0.5
    assert np.linalg.norm(found[1] - centers[1]) > 1.0


@pytest.mark.parametrize("case", FAMILIES, ids=repr)
@pytest.mark.parametrize("name", ["pooled-em", "pooled-grem"])
def test_pooled_is_the_fit_of_one_site_with_all_rows(case, name):
    data, start = example(case)
    middle = [np.median(leaf, axis=0)[None] for leaf in start]
    middle[0] = middle[0] / middle[0].sum()
    expected = fit(case, data.merged(), ALGORITHMS[name.replace("pooled", "local")](), middle, rounds=4)
    actual = fit(case, data, ALGORITHMS[name](), start, rounds=4)
    if case.some_noise() is None:  # where it is estimated, the first guess of it comes from every site
        for k in range(3):
            np.testing.assert_allclose(actual.theta[k], expected.theta[0], rtol=0, atol=1e-10)
            np.testing.assert_allclose(actual.weights[k], expected.weights[0], rtol=0, atol=1e-10)
    assert np.ptp(actual.theta, axis=0).max() == 0.0
    assert actual.n_rows.tolist() == list(SIZES)


def test_pooled_searches_its_start_on_all_rows_whatever_the_order_of_the_sites():
    data = GAUSSIAN.federation(3, SIZES, ("b", "c", "a"))
    turned = Federation(data.sites[::-1], data.columns)
    one, other = (fit(GAUSSIAN, which, ALGORITHMS["pooled-em"](), rounds=20) for which in (data, turned))
    np.testing.assert_array_equal(one.theta[0], other.theta[0])


# -- rows and who takes part


@pytest.mark.parametrize("name", ["fedgmm", "fedem-sa", "pooled-em", "fedem", "tgmm"])
def test_row_weights_count_as_rows(name):
    data, start = example(GAUSSIAN)
    twice = [Site(s.name, np.concatenate([s.rows] * 2), None, np.ones(2 * len(s.rows))) for s in data.sites]
    heavy = [Site(s.name, s.rows, None, np.full(len(s.rows), 2.0)) for s in data.sites]
    one, other = (
        fit(GAUSSIAN, Federation(tuple(which), data.columns), ALGORITHMS[name](), start) for which in (twice, heavy)
    )
    np.testing.assert_allclose(one.theta, other.theta, atol=1e-9)


class Absent(InProcess):
    """Some sites are away in the first rounds, although they are asked."""

    away, rounds = (1,), 2

    def ask(self, ask):
        replies = super().ask(ask)
        if ask.task != "step" or self.rounds == 0:
            return replies
        self.rounds -= 1
        present = replies.present & ~np.isin(np.arange(len(self.site_names)), self.away)

        def lost(leaf):
            found = np.array(leaf, dtype=float)
            found[~present] = np.nan
            return found

        return replies._replace(present=present, mail=map_arrays(lost, replies.mail))


@pytest.mark.parametrize("case", [GAUSSIAN, BY_NAME["gaussian-tied"], BY_NAME["regression-shared"]], ids=repr)
@pytest.mark.parametrize("name", FEDERATED)
def test_a_site_that_is_away_in_the_first_rounds_spoils_nothing(name, case):
    data, start = example(case, 4, (60, 50, 80, 70))
    full = fit(case, data, ALGORITHMS[name](), start, rounds=40)
    result = fit(case, data, ALGORITHMS[name](), start, rounds=40, engine=Absent)
    assert np.isfinite(result.theta).all()
    assert np.isfinite(result.weights).all()
    np.testing.assert_allclose(result.theta, full.theta, atol=0.2)


@pytest.mark.parametrize("name", FEDERATED)
def test_a_site_that_is_away_keeps_its_weights_and_the_others_do_not_hear_it(name):
    data, start = example(GAUSSIAN, 4, (60, 50, 80, 70))
    result = fit(GAUSSIAN, data, ALGORITHMS[name](), start, rounds=2, engine=Absent)
    np.testing.assert_array_equal(result.weights[1], start[0][1])
    others = Federation(tuple(s for k, s in enumerate(data.sites) if k != 1), data.columns)
    here = [0, 2, 3]
    alone = fit(GAUSSIAN, others, ALGORITHMS[name](), tuple(leaf[here] for leaf in start), rounds=2)
    if name not in ("fedgrem", "tgmm", "fedem-sa"):  # lambda, sources and participation know the number of sites
        np.testing.assert_allclose(result.theta[here], alone.theta, atol=1e-9)


# -- FedGMM


@paper
def test_the_log_likelihood_of_fedgmm_never_falls(case):
    data, start = example(case, 5, (60, 50, 80))
    algorithm = FedGMM(averaging="mass")  # exact EM; averaging by rows is not
    total = fit(case, data, algorithm, start, rounds=40).history["log_likelihood"].sum(axis=1)[1:]
    assert np.all(np.diff(total) > -1e-4)
    assert total[-1] > total[0]


def played(case, data, algorithm, start, rounds):
    """What the center holds after some rounds."""
    engine = InProcess(data, spec_for(case, algorithm))
    n_rows = np.array([float(len(site.rows)) for site in data.sites])
    nothing = Pull(np.zeros(()), np.zeros(()), np.ones(len(n_rows), dtype=bool))
    central = algorithm.begin(case.family, start, n_rows, nothing)
    for _ in range(rounds):
        replies = engine.ask(Ask("step", algorithm.broadcast(case.family, central), agreed=Agreed(None, False)))
        central, _ = algorithm.central_step(case.family, central, replies.mail, replies.present)
    return central


@pytest.mark.parametrize("averaging", ["mass", "rows"])
def test_fedgmm_estimates_covariances(averaging):
    generator = np.random.default_rng(0)
    stretch = np.array([3.0, 0.5])
    rows = [np.concatenate([generator.normal(size=(80, 2)) * stretch + s for s in ((0, 4), (0, -4))]) for _ in range(3)]
    start = Params(np.full((3, 2), 0.5), np.tile(np.array([[1.0, 3.0], [1.0, -3.0]]), (3, 1, 1)))
    central = played(GAUSSIAN, Federation.from_sites(["a", "b", "c"], rows), FedGMM(averaging=averaging), start, 30)
    variances = np.diagonal(central.extra.covariance, axis1=1, axis2=2)
    np.testing.assert_allclose(variances, np.stack([stretch**2] * 2), rtol=0.25)
    np.testing.assert_allclose(central.center, [[0.0, 4.0], [0.0, -4.0]], atol=0.6)


def test_covariate_components_find_the_groups_of_the_covariates():
    generator = np.random.default_rng(1)
    sides = [np.repeat([-4.0, 4.0], 50) for _ in range(3)]
    rows = [generator.normal(size=(100, 2)) + np.stack([side, np.zeros(100)], axis=1) for side in sides]
    targets = [x @ [1.0, 2.0] + generator.normal(size=100) for x in rows]
    data = Federation.from_sites(["a", "b", "c"], rows, targets)
    start = Params(np.ones((3, 1)), np.zeros((3, 1, 2)))
    central = played(REGRESSION, data, FedGMM(covariate_components=2), start, 20)
    np.testing.assert_allclose(np.sort(central.extra.covariates.mean[:, 0]), [-4.0, 4.0], atol=0.3)
    np.testing.assert_allclose(central.center[0], [1.0, 2.0], atol=0.2)


# -- FedEM by stochastic approximation


@paper
def test_compressed_and_partial_exchanges_lead_to_the_same_point(case):
    data, start = example(case, 6, (60, 50, 80))
    exact = fit(case, data, FedEMSA(**PLAIN_SA), start, rounds=100)
    rough = FedEMSA(approximation_step=0.2, keep=0.3, levels=8, participation=0.5)
    early, late = (fit(case, data, rough, start, rounds=rounds, seed=3) for rounds in (5, 400))
    assert np.abs(early.theta - exact.theta).max() > 1e-4
    np.testing.assert_allclose(late.theta, exact.theta, atol=1e-3)
    np.testing.assert_allclose(late.weights, exact.weights, atol=1e-3)


def test_fedem_sa_depends_on_the_seed_and_not_on_where_a_site_stands():
    data, start = example(GAUSSIAN, 7, (60, 50, 80, 40))
    order = [2, 3, 0, 1]
    turned = Federation(tuple(data.sites[k] for k in order), data.columns)
    rough = FedEMSA(keep=0.5, levels=4, participation=0.5)
    one, again, other = (fit(GAUSSIAN, data, rough, start, seed=seed) for seed in (0, 0, 1))
    moved = fit(GAUSSIAN, turned, rough, tuple(leaf[order] for leaf in start), seed=0)
    np.testing.assert_array_equal(one.theta, again.theta)
    assert np.abs(one.center - other.center).max() > 1e-3
    np.testing.assert_allclose(moved.theta, one.theta[order], atol=1e-10)
    np.testing.assert_allclose(moved.weights, one.weights[order], atol=1e-10)


def test_each_site_takes_part_by_its_own_lot_and_at_least_one_does():
    names = tuple("abcdefghij")
    drawn = np.array([FedEMSA(participation=0.5).invited(0, number, names) for number in range(200)])
    assert drawn[0].all()
    assert drawn[1:].mean() == pytest.approx(0.5, abs=0.05)
    assert np.corrcoef(drawn[1:].T.astype(float))[~np.eye(10, dtype=bool)].max() < 0.3
    rare = np.array([FedEMSA(participation=0.01).invited(0, number, names) for number in range(1, 50)])
    assert rare.sum(axis=1).min() == 1
    assert FedEMSA(participation=1.0).invited(0, 3, names).all()


def test_a_site_that_sits_out_is_not_asked_and_keeps_its_weights():
    data, start = example(GAUSSIAN, 8, (60, 50, 80))
    asked = []

    class Watched(InProcess):
        def ask(self, ask):
            if ask.task == "step":
                asked.append(np.ones(3, dtype=bool) if ask.to is None else ask.to)
            return super().ask(ask)

    rough = FedEMSA(participation=0.5)
    results = [fit(GAUSSIAN, data, rough, start, rounds=rounds, engine=Watched) for rounds in (7, 8)]
    here = asked[-1]
    assert 0 < here.sum() < 3
    np.testing.assert_array_equal((results[0].weights == results[1].weights).all(axis=1), ~here)
    assert 0.3 < np.mean(asked) < 0.9


# -- the picture of the paper


def test_local_em_in_the_papers_simulation_is_off_by_the_noise_of_thirty_rows():
    worst = []
    for seed in range(3):
        made = simulate("gmm", h=1.0, seed=seed)
        data = Federation.from_sites(list(made.rows), list(made.rows.values()))
        spec = FitSpec(GAUSSIAN.family, LocalEM(), 5, look=False, standard_errors=False)
        result, honest = run(spec, InProcess(data, spec)), made.honest
        errors = parameter_errors(
            result.weights[honest], result.theta[honest], made.weights[honest], made.theta[honest]
        )
        worst.append(errors[1].max())
    assert 1.0 < np.mean(worst) < 1.9


def test_only_the_pooled_ones_need_all_rows_in_one_place():
    assert set(ALGORITHMS) - set(FEDERATED) == {"pooled-em", "pooled-grem"}
