"""A fit from sums alone: the same center, masks that only open together, sites that drop out, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from fedgrem import FederatedGaussianMixture, FederatedRegressionMixture
from fedgrem.algorithms.center_rules import Huber
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.algorithms.tgmm import TGMM
from fedgrem.data.federation import Federation
from fedgrem.data.simulate import simulate
from fedgrem.data.units import UnitsPlan
from fedgrem.engines.inprocess import InProcess
from fedgrem.errors import InputError, PausedError
from fedgrem.families.covariance import Diagonal, Identity
from fedgrem.families.gaussian import Gaussian
from fedgrem.families.poisson import Poisson
from fedgrem.families.regression import LinearRegression
from fedgrem.fit.fit import run
from fedgrem.fit.spec import FitSpec, StartPlan, read_spec
from fedgrem.fit.sums_site import KEYS, Common, Middle, SumOrder, answer
from fedgrem.kernels.center import shrink_to_center
from fedgrem.kernels.masks import derive, mask, opened_sum, public_key, seal, to_whole, unseal
from fedgrem.kernels.passes import advance, begin, clipped
from fedgrem.types import Params, map_arrays
from tests.conformance.families import GAUSSIAN

SIZES = (40, 30, 50, 45)
DATA = GAUSSIAN.federation(0, SIZES)
NAMES = DATA.names
RULE = FedGrEM(center=Huber(), memory=0, pool_weights=False)


def spec_of(data=DATA, family=GAUSSIAN.family, algorithm=RULE, *, theta=None, noise=None, **options):
    """A fit of two components from a start that all sites have."""
    one = np.array([[-1.0, 0.0, 0.5], [1.0, 0.3, -0.5]])[:, : data.n_features] if theta is None else theta
    count = len(data.sites)
    given = Params(*(np.repeat(a[None], count, axis=0) for a in (np.full(len(one), 1.0 / len(one)), one)))
    if noise is not None:
        given = given._replace(noise=np.repeat(noise[None], count, axis=0))
    values = {"fallback": False, "look": False, "standard_errors": False, "start": StartPlan(alignment="none")}
    return FitSpec(family, algorithm, len(one), 2.0, given=given, **(values | {"secure_sums": True} | options))


class Listening:
    """An engine that keeps what the center hears, and loses a site in given exchanges."""

    def __init__(self, engine, lost=()):
        self.engine, self.lost, self.heard, self.asked = engine, dict(lost), [], []

    @property
    def site_names(self):
        return self.engine.site_names

    def ask(self, ask):
        replies = self.engine.ask(ask)
        self.asked.append(ask)
        self.heard.append((ask.task, replies.mail))
        if len(self.heard) in self.lost:
            present = replies.present.copy()
            present[self.lost[len(self.heard)]] = False
            replies = replies._replace(present=present)
        return replies


# -- the center, by passes


@pytest.mark.parametrize(("size", "threshold"), [(1, 0.7), (5, 1.0), (10, np.inf), (70, 0.8)])
def test_passes_of_clipped_sums_find_the_center_of_the_solver_that_sees_all_sites(size, threshold):
    generator = np.random.default_rng(size)
    theta = generator.normal(size=(9, 3, size))
    theta[0] += 100.0
    weight = generator.uniform(50, 500, size=(9, 3))
    limit = threshold * generator.uniform(0.5, 2.0, size=(9, 3))
    start = generator.normal(size=(3, size))
    search, passes = begin(start), 0
    while not search.done.all():
        parts = clipped(theta, weight, limit, search.center)
        search, passes = advance(search, map_arrays(lambda leaf: leaf.sum(axis=0), parts)), passes + 1
        assert passes < (12 if size < 70 else 200)
    expected = shrink_to_center(theta, weight, limit, start).center
    np.testing.assert_allclose(search.center, expected, rtol=0, atol=1e-9)


# -- masks


SECRETS = [derive(bytes([k]) * 32, b"test") for k in range(4)]
KEYS_OF_ALL = [public_key(secret) for secret in SECRETS]


def masked(numbers, here, purpose=b"1"):
    return [
        to_whole(numbers[k], 4, str(k)) + mask(SECRETS[k], k, KEYS_OF_ALL, here, purpose, len(numbers[k]))
        for k in np.flatnonzero(here)
    ]


@pytest.mark.parametrize("here", [[1, 1, 1, 1], [1, 0, 1, 1]])
def test_masks_cancel_in_the_sum_of_those_who_are_here_and_in_no_other(here):
    here = np.array(here, dtype=bool)
    numbers = np.random.default_rng(0).normal(scale=1e3, size=(4, 50))
    sent = np.stack(masked(numbers, here))
    np.testing.assert_allclose(opened_sum(sent), numbers[here].sum(axis=0), rtol=0, atol=1e-9)
    for k in range(len(sent)):
        assert np.abs(opened_sum(np.delete(sent, k, axis=0))).min() > 1e4


def test_a_masked_number_is_uniform_whatever_is_behind_it():
    sent = masked(np.zeros((4, 20_000)), np.ones(4, dtype=bool))[0] / 2.0**64
    counts = np.histogram(sent, bins=20, range=(0, 1))[0]
    assert np.sum((counts - 1000) ** 2 / 1000) < 50.0  # chi-squared of 19: beyond with a chance of 1e-4


def test_what_could_overflow_a_sum_is_refused():
    for number in (2.0**29, -(2.0**29), np.nan, np.inf):
        with pytest.raises(InputError, match=r"site 'north' would add .* put its columns on the scale"):
            to_whole(np.array([1.0, number]), 4, "north")
    most = np.full(4, 2.0**29 * (1 - 1e-9))
    assert opened_sum(np.stack([to_whole(most, 4, "") for _ in range(4)]))[0] == pytest.approx(2.0**31)


def test_a_seal_opens_for_its_own_key_and_unchanged_only():
    sealed = seal(SECRETS[0], b"own numbers")
    assert unseal(SECRETS[0], sealed) == b"own numbers"
    for key, text in ((SECRETS[1], sealed), (SECRETS[0], sealed[:-1] + bytes([sealed[-1] ^ 1]))):
        with pytest.raises(InputError, match="changed, or out of turn"):
            unseal(key, text)


# -- the same fit


CASES = {
    "identity": (GAUSSIAN.family, DATA, None),
    "diag": (Gaussian(Diagonal()), DATA, np.zeros((2, DATA.n_features))),
}


@pytest.mark.parametrize("case", CASES)
def test_the_center_is_that_of_the_fit_that_sees_all_sites(case):
    family, data, noise = CASES[case]
    for rounds, tol in ((1, 0.0), (7, 0.0), (500, 1e-11)):
        spec = spec_of(data, family, noise=noise, max_rounds=rounds, tol=tol)
        engine = InProcess(data, spec)
        found = engine.revealed(run(spec, engine))
        plain = replace(spec, secure_sums=False)
        expected = run(plain, InProcess(data, plain))
        # The 1e-9 that is promised is for the center where it has settled; before that, a round has at most 5 passes.
        for name in ("center", "theta", "weights", "distance"):
            np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=0, atol=1e-9, err_msg=name)
        np.testing.assert_allclose(found.influence.threshold, expected.influence.threshold, atol=1e-9)
    assert found.converged
    assert found.history["passes"].max() <= 5
    assert found.history["passes"][-1] <= 2


def test_regressions_too():
    simulated = simulate("mor", h=0.5, n_sites=5, seed=2)
    names = list(simulated.rows)
    data = Federation.from_sites(
        names, [simulated.rows[n] for n in names], [simulated.targets[n] for n in names]
    )  # fmt: skip
    theta = simulated.theta[:4].mean(axis=0)
    spec = spec_of(data, LinearRegression(noise="unit"), theta=theta, max_rounds=4, tol=0.0)
    found, plain = run(spec, InProcess(data, spec)), replace(spec, secure_sums=False)
    np.testing.assert_allclose(found.center, run(plain, InProcess(data, plain)).center, rtol=0, atol=1e-9)


def test_the_center_hears_nothing_but_noise_and_knows_of_single_sites_nothing():
    spec = spec_of(max_rounds=3, tol=0.0)
    first, second = (Listening(InProcess(DATA, spec)) for _ in range(2))
    results = [run(spec, engine) for engine in (first, second)]
    np.testing.assert_array_equal(results[0].center, results[1].center)
    for (task, mail), (_, other) in zip(first.heard, second.heard, strict=True):
        if task == KEYS:
            continue
        assert not np.any(mail.masked == other.masked), task
        assert mail.masked.dtype == np.int64
    numbers = np.concatenate([mail.masked.ravel() for task, mail in first.heard if task != KEYS]).view(np.uint64)
    assert abs(np.mean(numbers / 2.0**64) - 0.5) < 4.0 * np.sqrt(1.0 / 12.0 / len(numbers))
    for name in ("weights", "theta", "distance", "n_rows"):
        assert np.isnan(getattr(results[0], name)).all(), name


# -- sites that are lost


def test_a_site_lost_in_any_pass_is_left_out_and_the_others_go_on():
    data = GAUSSIAN.federation(1, (40, 30, 50, 45, 35))
    spec = spec_of(data, max_rounds=3, tol=0.0)
    whole = Listening(InProcess(data, spec))
    run(spec, whole)
    for exchange in range(2, len(whole.heard) + 1):
        engine = Listening(InProcess(data, spec), {exchange: exchange % 5})
        result = run(spec, engine)
        assert np.isfinite(result.center).all()
        lost = exchange % 5
        again = [ask for ask in engine.asked[exchange:] if ask.task != KEYS]
        assert all(ask.to is not None and not ask.to[lost] and ask.to.sum() == 4 for ask in again)


def test_a_fit_that_loses_a_site_at_once_is_the_fit_of_the_others():
    data = GAUSSIAN.federation(1, (40, 30, 50, 45, 35))
    # With an infinite penalty lambda does not depend on the number of sites.
    spec = replace(spec_of(data, max_rounds=6, tol=0.0), penalty=np.inf)
    result = run(spec, Listening(InProcess(data, spec), {2: 3}))
    rest = Federation(tuple(site for k, site in enumerate(data.sites) if k != 3), data.columns)
    plain = replace(spec, secure_sums=False, given=map_arrays(lambda leaf: leaf[:4], spec.given))
    np.testing.assert_allclose(result.center, run(plain, InProcess(rest, plain)).center, rtol=0, atol=1e-9)


def test_two_sites_are_too_few_at_the_beginning_and_later():
    data = GAUSSIAN.federation(1, (40, 30))
    with pytest.raises(InputError, match="at least 3 sites, and there are 2"):
        run(spec_of(data), InProcess(data, spec_of(data)))
    spec = spec_of()
    with pytest.raises(PausedError, match=r"2 site\(s\) are left.* begin again with more sites"):
        run(spec, Listening(InProcess(DATA, spec), {3: 0, 4: 1}))


# -- a center that is too curious


CENSUS = InProcess(DATA, spec_of())
CONTENT = Middle(np.zeros((3, DATA.n_features)), np.ones((3, DATA.n_features)))


def order(place=0, here=(1, 1, 1, 1), keys=KEYS_OF_ALL, chain=bytes(32), content=CONTENT, sealed=None):
    table = np.stack([np.frombuffer(key, dtype=np.uint8) for key in keys])
    return SumOrder(
        Common(table, np.array(here, dtype=bool), np.frombuffer(chain, dtype=np.uint8), content),
        np.array(place),
        sealed,
    )


def ask_first_site(task="sum_middle", **changes):
    from fedgrem.data.units import take_census

    census = map_arrays(lambda leaf: np.asarray(leaf)[None], take_census(DATA.sites[0]))
    (reply,), _ = answer(spec_of(), task, census, [order(**changes)], ["north"], SECRETS[:1])
    return reply.masked.view(np.uint64)


def test_a_site_answers_no_sum_of_fewer_than_three_and_none_in_its_absence():
    with pytest.raises(InputError, match="a sum over 2 sites; at least 3"):
        ask_first_site(here=(1, 1, 0, 0))
    with pytest.raises(InputError, match="not for 'north'"):
        ask_first_site(here=(0, 1, 1, 1))
    with pytest.raises(InputError, match="not for 'north'"):
        ask_first_site(place=1)
    with pytest.raises(InputError, match="at least 3"):  # the same key thrice is one site
        ask_first_site(keys=[KEYS_OF_ALL[0], *[KEYS_OF_ALL[1]] * 3])


def test_what_was_asked_before_in_other_words_does_not_help():
    first = ask_first_site()
    np.testing.assert_array_equal(ask_first_site(), first)
    other = CONTENT._replace(limit=2.0 * CONTENT.limit)
    for changes in ({"content": other}, {"chain": bytes([1]) * 32}, {"here": (1, 1, 1, 0)}):
        apart = (first - ask_first_site(**changes)).view(np.int64) * 2.0**-32
        assert np.median(np.abs(apart)) > 1e6, changes  # the numbers themselves are below 100


def test_another_past_or_a_lost_site_that_is_back_is_refused():
    spec = spec_of(max_rounds=3, tol=0.0)
    engine = InProcess(DATA, spec)
    listening = Listening(engine, {6: 3})
    run(spec, listening)
    asks = [ask for ask in listening.asked if ask.task in ("sum_round", "sum_pass")]
    before, after = asks[0], asks[-1]
    with pytest.raises(InputError, match="out of turn"):
        engine.ask(after._replace(mail=after.mail._replace(sealed=before.mail.sealed)))
    back = np.ones_like(after.mail.common.here)
    with pytest.raises(InputError, match="a lost site stays out"):
        engine.ask(after._replace(mail=after.mail._replace(common=after.mail.common._replace(here=back)), to=after.to))


# -- starts, units and the penalty from sums


def test_from_sums_alone_honest_sites_are_as_well_off_as_with_all_in_sight():
    simulated = simulate("gmm", h=0.3, seed=3)
    options = {"n_components": 5, "covariance_type": "identity", "random_state": 0, "penalty": 2.0}
    honest = list(simulated.rows)[:9]

    def error(model):
        told = dict(zip(model.site_names_, model.means_, strict=True))
        truth = dict(zip(simulated.rows, simulated.theta, strict=True))
        return max(np.linalg.norm(told[n][:, None] - truth[n], axis=-1).min(axis=0).max() for n in honest)

    secure = FederatedGaussianMixture(secure_sums=True, **options).fit(simulated.rows)
    plain = FederatedGaussianMixture(algorithm=FedGrEM(center="huber"), **options).fit(simulated.rows)
    assert error(secure) < 1.1 * error(plain)
    assert set(secure.site_verdict_[:9]) <= {"at the center", "similar", "own answer"}
    assert secure.site_verdict_[9] == "own answer"


def test_units_of_a_site_in_other_units_move_the_common_ones_little():
    generator = np.random.default_rng(0)
    rows = {f"s{k}": generator.normal(5.0, 2.0, size=(60, 2)) for k in range(7)}
    honest = FederatedGaussianMixture(1, penalty=1.0, secure_sums=True, random_state=0).fit(rows)
    rows["s6"] = rows["s6"] * 1000.0
    odd = FederatedGaussianMixture(1, penalty=1.0, secure_sums=True, random_state=0).fit(rows)
    np.testing.assert_allclose(odd.location_, honest.location_, atol=0.3)
    np.testing.assert_allclose(odd.scale_, honest.scale_, rtol=0.2)
    np.testing.assert_allclose(honest.location_, 5.0, atol=0.3)
    np.testing.assert_allclose(honest.scale_, 2.0, rtol=0.2)


def test_the_penalty_is_chosen_by_summed_gains():
    alike = GAUSSIAN.federation(0, (60, 60, 60, 60))
    spec = replace(spec_of(alike, max_rounds=2, tol=0.0), penalty=None)
    result = run(spec, InProcess(alike, spec))
    assert result.path["penalty"] >= 1.0
    assert result.path["gain"][0] == 0.0
    assert np.isnan(result.path["site_gain"]).all()
    cost = result.cost
    assert cost["rounds"] == result.n_rounds > 0, "those of the choice are not of the fit"
    assert cost["penalty_exchanges"] > 8


# -- what is refused


def test_what_needs_single_sites_is_refused():
    for options, match in (
        ({"algorithm": TGMM()}, "secure sums find Huber's center"),
        ({"algorithm": FedGrEM(center="krum")}, "secure sums find Huber's center"),
        ({"algorithm": replace(RULE, batch=0.5)}, "all rows of all sites"),
        ({"family": Poisson()}, "not for 'poisson'"),
    ):
        with pytest.raises(InputError, match=match):
            run(spec_of(**options), InProcess(DATA, spec_of()))
    with pytest.raises(InputError, match="nothing to sum"):
        run(replace(spec_of(), penalty=0.0), InProcess(DATA, spec_of()))
    apart = spec_of()
    apart.given.theta[0] += 1.0
    with pytest.raises(InputError, match="sites begin alike"):
        run(apart, InProcess(DATA, apart))


def test_estimators_say_what_does_not_go_together():
    rows = {f"s{k}": np.random.default_rng(k).normal(size=(20, 2)) for k in range(3)}
    with pytest.raises(InputError, match="n_components='auto'; give a number"):
        FederatedGaussianMixture("auto", secure_sums=True).fit(rows)
    with pytest.raises(TypeError, match="secure_sums must be True or False"):
        FederatedGaussianMixture(2, secure_sums="yes").fit(rows)
    with pytest.raises(InputError, match="intercept='site'"):
        FederatedRegressionMixture(2, secure_sums=True, intercept="site").fit(
            rows, {n: r[:, 0] for n, r in rows.items()}
        )


def test_the_spec_travels():
    spec = replace(spec_of(), given=None, units=UnitsPlan(True), family=Gaussian(Identity()))
    assert read_spec(spec.to_json()).secure_sums
