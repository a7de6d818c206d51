"""Every attack of the registry: what it must not do, what it must, and what its formula says."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from fedgrem.algorithms.centered import Centered
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.algorithms.registry import ALGORITHMS
from fedgrem.attacks import (
    ATTACKS,
    Attacked,
    Divided,
    Only,
    RefusedError,
    Scene,
    Together,
    attack_rows,
    claims,
    edge,
    estimates,
    fit_attacked,
    rows,
)
from fedgrem.attacks.base import among, crowd, find
from fedgrem.data.federation import Federation
from fedgrem.data.simulate import CENTERS, simulate
from fedgrem.engines.inprocess import InProcess
from fedgrem.engines.remote.validate import check_reply
from fedgrem.engines.remote.wire import encode as fields_of
from fedgrem.errors import InputError, MessageError
from fedgrem.families.covariance import Tied
from fedgrem.families.gaussian import Gaussian
from fedgrem.families.regression import LinearRegression
from fedgrem.fit.conversation import Ask, Replies, everyone
from fedgrem.fit.fit import run
from fedgrem.fit.spec import FitSpec, StartPlan
from fedgrem.kernels.scores import parameter_errors
from fedgrem.studies.attacks import ALONE, NONE, OURS
from fedgrem.studies.under_attack import Scenario, trial
from fedgrem.types import Params, Upload, map_arrays, named_arrays
from tests.conformance.engines import FakeWire

N_SITES, BAD = 7, ("site-06", "site-07")
IS_BAD = np.arange(N_SITES) >= 5
MESSAGES = [name for name, entry in ATTACKS.items() if not entry.on_rows]
ROWS = [name for name, entry in ATTACKS.items() if entry.on_rows]
START = StartPlan(n_init=2, short=5, long=20)
FAMILIES = {"gmm": Gaussian(), "tied": Gaussian(Tied()), "mor": LinearRegression("shared")}


@cache
def drawn(model, seed=0, n_sites=N_SITES):
    return simulate(model, n_sites=n_sites, n_outliers=0, n_rows=60, centers=CENTERS[:2, :3], seed=seed)


@cache
def federation(model, seed=0):
    data = drawn("mor" if model == "mor" else "gmm", seed)
    targets = None if data.targets is None else list(data.targets.values())
    return Federation.from_sites(list(data.rows), list(data.rows.values()), targets)


def spec_of(model, **options):
    return FitSpec(FAMILIES[model], FedGrEM(), 2, start=START, **({"max_rounds": 3} | options))


@cache
def exchanges(model):
    """Everything that is said in a fit with default options, once of each kind."""
    found, spec = {}, spec_of(model, standard_errors=True, score=True)
    engine = InProcess(federation(model), spec, threads=1)

    class Recorder:
        site_names = engine.site_names

        def ask(self, ask):
            replies = engine.ask(ask)
            found.setdefault(ask.task, (ask, replies))
            return replies

    run(spec, Recorder())
    return spec, list(found.values())


def scene_of(spec, ask, replies, number=0, bad=IS_BAD):
    names = tuple(f"site-{k + 1:02d}" for k in range(len(bad)))
    return Scene(ask, spec, names, bad, replies.mail.n_rows, number, seed=1)


def leaves(replies):
    return [("present", replies.present), *named_arrays(replies.mail)]


# -- the registry


@pytest.mark.parametrize("model", FAMILIES)
@pytest.mark.parametrize("name", MESSAGES)
def test_every_attack_keeps_the_form_of_every_reply_and_lies_the_same_again(name, model):
    attack, (spec, said) = ATTACKS[name].attack, exchanges(model)
    lied = False
    for number, (ask, honest) in enumerate(said):
        before = map_arrays(np.copy, honest.mail)
        lies, again = (among(honest, attack(honest, scene_of(spec, ask, honest, number)), IS_BAD) for _ in range(2))
        for (field, true), (_, lie), (_, twice) in zip(leaves(honest), leaves(lies), leaves(again), strict=True):
            assert lie.shape == true.shape, (ask.task, field)
            np.testing.assert_array_equal(lie, twice)
            np.testing.assert_array_equal(lie[~IS_BAD], true[~IS_BAD])
            lied |= not np.array_equal(lie[IS_BAD], true[IS_BAD], equal_nan=lie.dtype.kind == "f")
        map_arrays(np.testing.assert_array_equal, before, honest.mail)
    # Who is silent every other time spoke once of everything here.
    assert lied


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("model", ["gmm", "mor"])
def test_every_attack_on_rows_keeps_their_form_and_those_of_honest_sites(name, model):
    data, attack = drawn(model), ATTACKS[name].attack
    found, targets = attack_rows(data.rows, attack, BAD, targets=data.targets, seed=3)
    again, _ = attack_rows(data.rows, attack, BAD, targets=data.targets, seed=3)
    for site, own in data.rows.items():
        pairs = [(own, found[site])]
        pairs += [] if data.targets is None else [(data.targets[site], targets[site])]
        assert all(true.shape == lie.shape and np.isfinite(lie).all() for true, lie in pairs)
        assert any(not np.array_equal(true, lie) for true, lie in pairs) == (site in BAD)
        np.testing.assert_array_equal(found[site], again[site])


@cache
def plain_mean_error(name=None):
    """Root mean square error of the honest sites where all share the plain mean; infinite where the fit dies."""
    square = []
    for seed in range(3):
        data, whole, found = drawn("gmm", seed), federation("gmm", seed), None
        options = {"penalty": np.inf, "fallback": False, "look": False, "standard_errors": False, "max_rounds": 25}
        plain = FedGrEM(center="mean", memory=0, local_steps=3)
        spec = FitSpec(FAMILIES["gmm"], plain, 2, start=START, seed=seed, **options)
        entry = None if name is None else ATTACKS[name]
        if entry is not None and entry.on_rows:
            found, _ = attack_rows(data.rows, entry.attack, BAD, seed=seed)
            whole, entry = Federation.from_sites(list(found), list(found.values())), None
        try:
            if entry is None:
                result = run(spec, InProcess(whole, spec, threads=1))
            else:
                result = fit_attacked(spec, whole, entry.attack, BAD, seed=seed)
        except ValueError:
            return np.inf
        if not np.isfinite(result.theta[:5]).all():
            return np.inf
        error = parameter_errors(result.weights[:5], result.theta[:5], data.weights[:5], data.theta[:5])[1]
        square.append(error**2)
    return float(np.sqrt(np.mean(square)))


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_breaks_the_plain_mean_or_says_why_it_does_not(name):
    worse = plain_mean_error(name) / plain_mean_error()
    if ATTACKS[name].spares_mean:
        assert worse < 1.2
    else:
        assert worse > 1.3


def test_entries_say_who_and_what():
    for name, entry in ATTACKS.items():
        assert entry.title, name
        assert entry.reference, name
        assert entry.what.endswith("."), name
    assert len({entry.title for entry in ATTACKS.values()}) == len(ATTACKS)
    page = (Path(__file__).parents[2] / "docs" / "attacks.md").read_text(encoding="utf-8")
    for name, entry in ATTACKS.items():
        assert f"| `{name}` | {entry.what}" in page, name
        assert entry.spares_mean in page, name


# -- formulas


def told(attack, theta, *, sent=None, bad=IS_BAD, number=0, algorithm=None, weights=None):
    """What the sites say in a round where the honest ones sent ``theta`` (K, R, q), and were sent ``sent``."""
    weights = np.full(theta.shape[:2], 1.0 / theta.shape[1]) if weights is None else weights
    params = Params(weights, theta)
    ones = np.ones(len(theta))
    ask = Ask("step", () if sent is None else Upload(Params(weights, sent), ones, ones, ones))
    honest = Replies(everyone(len(theta)), Upload(params, np.ones(theta.shape[:2]), 50.0 * ones, -ones))
    spec = FitSpec(Gaussian(), algorithm or FedGrEM(), theta.shape[1])
    return among(honest, attack(honest, scene_of(spec, ask, honest, number, bad)), bad)


THETA = np.random.default_rng(5).normal(size=(N_SITES, 2, 3))
HONEST = THETA[~IS_BAD]


def bad_theta(attack, theta=THETA, **options):
    return told(attack, theta, **options).mail.params.theta[IS_BAD]


def test_a_little_is_enough_is_mean_less_z_deviations():
    expected = HONEST.mean(axis=0) - 2.0 * HONEST.std(axis=0)
    np.testing.assert_allclose(bad_theta(estimates.ALIE(2.0)), np.stack([expected, expected]))


def test_inner_product_manipulation_turns_the_honest_step():
    sent = np.full_like(THETA, 0.3)
    step = HONEST.mean(axis=0) - 0.3
    np.testing.assert_allclose(bad_theta(estimates.IPM(2.0), sent=sent)[0], 0.3 - 2.0 * step)
    mean = told(estimates.IPM(), THETA, sent=sent).mail.params.theta.mean(axis=0)
    assert np.all(np.sign(mean - 0.3) == -np.sign(step))  # enough to turn the mean of all around


def test_min_max_is_as_far_from_a_site_as_two_of_them_are_apart():
    lie = bad_theta(estimates.MinMax())[0]
    farthest = np.linalg.norm(HONEST - lie, axis=-1).max(axis=0)
    widest = np.linalg.norm(HONEST[:, None] - HONEST[None], axis=-1).max(axis=(0, 1))
    np.testing.assert_allclose(farthest, widest)


def test_mimic_repeats_one_honest_site():
    theta = THETA.copy()
    theta[3] += 9.0
    found = told(estimates.Mimic(), theta)
    np.testing.assert_array_equal(found.mail.params.theta[IS_BAD], np.stack([theta[3], theta[3]]))


def test_labels_are_permuted_with_all_that_has_labels_and_otherwise_than_before():
    theta = np.arange(5.0)[None, :, None] + np.zeros((N_SITES, 5, 2))
    weights = np.tile(np.arange(1.0, 6.0) / 15.0, (N_SITES, 1))
    first, second = (told(estimates.PermutedLabels(), theta, weights=weights, number=n).mail.params for n in (0, 1))
    np.testing.assert_allclose(first.weights, (first.theta[..., 0] + 1.0) / 15.0)
    assert not np.array_equal(first.theta[5], first.theta[6])
    assert not np.array_equal(first.theta[5], second.theta[5])


def test_collapse_and_shift_and_restless_are_as_large_as_they_say():
    assert np.ptp(bad_theta(estimates.Collapse()), axis=1).max() < 1e-12
    usual = np.sqrt(((HONEST - HONEST.mean(axis=0)) ** 2).sum(axis=-1).mean(axis=0))
    away = bad_theta(estimates.Shift(1.5)) - HONEST.mean(axis=0)
    np.testing.assert_allclose(np.linalg.norm(away, axis=-1), np.stack([1.5 * usual] * 2))
    moved = np.linalg.norm(bad_theta(estimates.Restless(0.02)) - THETA[IS_BAD], axis=-1)
    np.testing.assert_allclose(moved, 0.02 * (1.0 + np.linalg.norm(THETA[IS_BAD], axis=-1)))


def test_one_shift_of_rows_is_common_to_all_bad_sites():
    data = drawn("gmm")
    found, _ = attack_rows(data.rows, rows.CommonShift(0.5), BAD, seed=2)
    first, second = (found[name] - data.rows[name] for name in BAD)
    np.testing.assert_allclose(first, second[: len(first)], atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 0.5)
    other, _ = attack_rows(data.rows, rows.CommonShift(0.5), BAD, seed=3)
    assert not np.allclose(other[BAD[0]], found[BAD[0]])


@pytest.mark.parametrize("kind", ["far", "clump", "heavy"])
def test_a_part_of_the_rows_is_that_part(kind):
    data = drawn("gmm")
    found, _ = attack_rows(data.rows, rows.PartOfRows(kind, 0.2), BAD)
    assert (found[BAD[0]] != data.rows[BAD[0]]).any(axis=1).sum() == 12


def test_sizes_are_false_alike_in_every_message_and_sums_are_to_match():
    spec, said = exchanges("gmm")
    for number, (ask, honest) in enumerate(said):
        lies = claims.FalseSize(rows=1e6)(honest, scene_of(spec, ask, honest, number)).mail
        np.testing.assert_allclose(lies.n_rows[IS_BAD], 1e6)
        if find(lies, "log_likelihood") is not None:
            mean, true = (m.log_likelihood / m.n_rows.reshape(-1, *(1,) * (m.log_likelihood.ndim - 1))
                          for m in (lies, honest.mail)) if hasattr(lies, "log_likelihood") else (1.0, 1.0)  # fmt: skip
            np.testing.assert_allclose(mean, true)


def test_the_crowd_has_common_labels_where_sites_are_not_matched_yet():
    theta = np.array([[[0.0], [10.0]], [[10.1], [0.1]], [[9.9], [-0.1]]])
    seen = crowd(Params(np.full((3, 2), 0.5), theta), np.ones(3, dtype=bool), "start")
    np.testing.assert_allclose(seen.mean.ravel(), [0.0, 10.0], atol=1e-12)


class Within:
    """A rule that trusts up to a stated distance from the last center, fully, and takes the mean of those."""

    name, estimates = "within", False

    def __init__(self, radius):
        self.radius = radius

    def __call__(self, theta, weight, threshold, held, start, present):
        trust = (np.linalg.norm(theta - start, axis=-1) <= self.radius).astype(float)
        center = (trust[..., None] * theta).sum(axis=0) / np.maximum(trust.sum(axis=0), 1.0)[..., None]
        return Centered(theta, center, trust, np.asarray(1), np.asarray(0.0))


@pytest.mark.parametrize("attack", [edge.EdgeOfTrust(16), edge.WorstShift(200)], ids=repr)
@pytest.mark.parametrize("radius", [4.0, 7.0])
def test_colluders_find_the_edge_of_whatever_rule_there_is(attack, radius):
    algorithm = FedGrEM(center=Within(radius))
    lie = bad_theta(attack, algorithm=algorithm)
    away = np.linalg.norm(lie - HONEST.mean(axis=0), axis=-1)
    assert np.all(away <= radius)
    assert np.all(away > 0.96 * radius)
    np.testing.assert_array_equal(lie[0], lie[1])


def test_the_rule_that_is_asked_is_the_one_that_the_fit_uses():
    spec, said = exchanges("gmm")
    ask, replies = next(pair for pair in said if pair[0].task == "step")
    for penalty in (None, 1.0):
        scene = scene_of(replace(spec, penalty=penalty), ask, replies)
        seen = edge.probe(crowd(replies.mail.params, ~IS_BAD, "step"), scene)
        assert (seen.ask(np.zeros(2)).between is None) == (penalty is not None)


def test_scattered_colluders_are_about_the_edge_and_differ_the_same_way_in_every_message():
    algorithm = FedGrEM(center=Within(4.0))
    plain, first, second = (
        bad_theta(edge.EdgeOfTrust(16, scatter=scatter), algorithm=algorithm, number=number)
        for scatter, number in ((0.0, 0), (0.5, 1), (0.5, 2))
    )
    np.testing.assert_array_equal(first, second)
    assert not np.allclose(first[0], first[1])
    assert np.all(np.abs(first - plain) < 0.5 * 4.0 * HONEST.std(axis=0))


# -- several at once


def test_together_one_lies_on_top_of_the_other_and_divided_each_has_its_own():
    flip, size = estimates.SignFlip(), claims.FalseSize(10.0)
    both, each = (told(how(flip, size), THETA).mail for how in (Together, Divided))
    np.testing.assert_array_equal(both.params.theta[IS_BAD], -THETA[IS_BAD])
    np.testing.assert_allclose(both.n_rows[IS_BAD], 500.0)
    np.testing.assert_array_equal(each.params.theta[IS_BAD], [-THETA[5], THETA[6]])
    np.testing.assert_allclose(each.n_rows[IS_BAD], [50.0, 500.0])
    np.testing.assert_array_equal(told(Only(flip, ("look",)), THETA).mail.params.theta, THETA)


# -- the wrapper


def test_an_attack_that_does_nothing_changes_nothing_and_one_on_honest_sites_is_ignored():
    spec = spec_of("gmm")
    plain = run(spec, InProcess(federation("gmm"), spec, threads=1))
    for attack, bad in ((Together(), BAD), (estimates.SignFlip(), ())):
        np.testing.assert_array_equal(fit_attacked(spec, federation("gmm"), attack, bad).theta, plain.theta)


def test_what_a_network_would_refuse_before_round_1_leaves_the_fit_without_the_site():
    spec, data = spec_of("gmm"), federation("gmm")
    found = fit_attacked(spec, data, estimates.Constant(np.nan), BAD)
    assert found.site_names == data.names[:5]
    few = Federation(data.sites[:5], data.columns)
    np.testing.assert_array_equal(found.theta, run(spec, InProcess(few, spec, threads=1)).theta)
    engine = Attacked(InProcess(data, spec), estimates.Constant(np.nan), BAD, spec=spec)
    with pytest.raises(RefusedError, match=r"'site-06' sent NaN or infinity in 6 of 6.*takes no part"):
        run(spec, engine)


def test_what_a_network_would_refuse_later_counts_as_absent():
    spec, data = spec_of("gmm", penalty=1.0, fallback=False), federation("gmm")
    nan, silent = (Only(one, ("step",)) for one in (estimates.Constant(np.nan), claims.Silent()))
    engine = Attacked(InProcess(data, spec), nan, BAD, spec=spec)
    found = run(spec, engine)
    np.testing.assert_array_equal(found.theta, fit_attacked(spec, data, silent, BAD).theta)
    assert set(engine.refused) == set(BAD)
    assert np.isfinite(found.theta).all()
    # A size that changes between messages is refused as well.
    changed = Attacked(InProcess(data, spec), Only(claims.FalseSize(10.0), ("step",)), BAD, spec=spec)
    run(spec, changed)
    assert "600 rows, and said 60 before" in changed.refused["site-06"]


@pytest.mark.parametrize(
    "algorithm",
    [one() for one in ALGORITHMS.values() if not one.traits.pools_rows] + [FedGrEM(sites=0.6), FedGrEM(center="krum")],
    ids=repr,
)
@pytest.mark.parametrize("name", ["edge-loud", "worst-shift", "alie", "ipm", "mimic", "stale", "every-other"])
def test_every_algorithm_can_be_attacked(name, algorithm):
    spec = spec_of("gmm")
    spec = replace(spec, algorithm=algorithm, penalty=1.0, fallback=False)
    result = fit_attacked(spec, federation("gmm"), ATTACKS[name].attack, BAD)
    assert result.site_names == federation("gmm").names
    assert np.isfinite(result.theta[:5]).all()


@pytest.mark.parametrize("name", ["edge-loud", "chaos"])
def test_an_attack_is_the_same_around_every_engine(name):
    spec, data = spec_of("tied", penalty=1.0, fallback=False), federation("tied")
    results = [
        run(spec, Attacked(engine(data, spec), ATTACKS[name].attack, BAD, spec=spec))
        for engine in (InProcess, FakeWire)
    ]
    np.testing.assert_allclose(results[0].theta, results[1].theta, rtol=1e-6, atol=1e-8)


def test_sites_that_are_not_there_cannot_be_bad():
    spec = spec_of("gmm")
    with pytest.raises(InputError, match="nobody is no site of this engine"):
        Attacked(InProcess(federation("gmm"), spec), claims.Silent(), ["nobody"], spec=spec)
    with pytest.raises(InputError, match="nobody is no site; the sites are site-01"):
        attack_rows(drawn("gmm").rows, rows.Far(), ["nobody"])


# -- what the default fit makes of them


@pytest.mark.parametrize(("name", "most"), [("shift", 1.35), ("alie-loud", 1.35), ("huge", 1.35), ("restless", 1.1)])
def test_one_bad_site_of_ten_costs_a_default_fit_little_and_it_ends(name, most):
    drawn = simulate("gmm", n_sites=10, n_outliers=0, seed=1)
    clean, bad = (trial(Scenario("gmm", 0.0, 10, 0.1, attack), drawn, 1, OURS) for attack in (NONE, name))
    assert bad["theta_error"] <= most * clean["theta_error"]
    assert bad["rounds"] <= 2 * clean["rounds"] + 10
    assert not bad["died"]


@pytest.mark.parametrize(("name", "share", "settles"), [("sign-flip", 0.1, True), ("silent", 0.3, False)])
def test_neither_those_who_never_rest_nor_those_who_are_away_keep_the_others(name, share, settles):
    drawn = simulate("gmm", n_sites=10, n_outliers=0, seed=0)
    clean, bad = (trial(Scenario("gmm", 0.0, 10, share, attack), drawn, 0, OURS) for attack in (NONE, name))
    assert bad["rounds"] <= 2 * clean["rounds"] + 10
    assert bad["settled"] is settles


FUZZED = ("census", "start", "compare", "path_step", "path_score", "weights_score", "step", "held_down", "look",
          "information", "score")  # fmt: skip


@pytest.mark.parametrize("task", FUZZED)
def test_fuzzed_replies_are_refused_or_do_no_harm(task):
    family = Gaussian(Tied(), robust_rows=True)
    spec = replace(spec_of("tied"), family=family, score=True, standard_errors=True, max_rounds=12)
    check = fit_attacked(spec, federation("tied"), Only(claims.Fuzz(0.0), (task,)), BAD, seed=0)
    honest = [k for k, name in enumerate(check.site_names) if name not in BAD]
    for seed in range(2):
        found = fit_attacked(spec, federation("tied"), Only(claims.Fuzz(0.3), (task,)), BAD, seed=seed)
        kept = [k for k, name in enumerate(found.site_names) if name not in BAD]
        assert len(kept) == len(honest)
        assert np.isfinite(found.theta[kept]).all()
        apart = np.linalg.norm(found.theta[kept][:, :, None] - check.theta[honest][:, None], axis=-1).min(axis=2)
        assert apart.max() < 1.0


def test_three_colluders_of_ten_do_not_make_a_fit_worse_than_alone():
    drawn = simulate("gmm", n_sites=10, n_outliers=0, seed=2)
    for name in ("shift", "alie-loud"):
        scene = Scenario("gmm", 0.0, 10, 0.3, name)
        bad, alone = trial(scene, drawn, 2, OURS), trial(scene._replace(attack=NONE), drawn, 2, ALONE)
        assert bad["theta_error"] < 0.6 * alone["theta_error"]


def test_a_finite_number_no_honest_site_could_send_is_refused_by_name():
    declared = Params(np.zeros(2), np.zeros((2, 2)))
    reply = Upload(declared._replace(weights=np.full(2, 0.5)), np.ones(2), np.array(60.0), np.array(-9.0))
    options = {"exchange": (3, 3), "n_rows": None, "gaps": False}
    assert check_reply("west", "step", fields_of(reply), reply, **options).n_rows == 60
    huge = reply._replace(params=reply.params._replace(theta=np.full((2, 2), 1e200)))
    with pytest.raises(MessageError, match=r"site 'west' sent 1e\+200 in params.theta, expected at most 1e\+100"):
        check_reply("west", "step", fields_of(huge), reply, **options)
