"""The penalized center against closed forms, scipy, and a loop-by-loop reading of the paper."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedgrem.kernels.center import (
    WEIGHT_CAP,
    alternate_to_center,
    between_sites,
    capped_rows,
    shrink,
    shrink_to_center,
    trust,
)

solve, alternate = shrink_to_center, alternate_to_center


def problem(seed, n_sites, n_components, n_parameters, spread=3.0):
    generator = np.random.default_rng(seed)
    theta = generator.normal(scale=spread, size=(n_sites, n_components, n_parameters))
    weight = generator.uniform(0.5, 4.0, size=(n_sites, n_components))
    threshold = generator.uniform(0.2, 3.0, size=(n_sites, n_components))
    return theta, weight, threshold


def joint_objective(theta, weight, threshold, shrunk, center):
    """The objective of one component as the paper writes it: (K, q), (K,), (K,), (K, q), (q,)."""
    total = 0.0
    for k in range(len(theta)):
        distance = np.linalg.norm(shrunk[k] - center)
        pull = 0.0 if distance == 0 else threshold[k] * distance
        total += weight[k] * (0.5 * np.sum((shrunk[k] - theta[k]) ** 2) + pull)
    return total


def huber_gradient(theta, weight, threshold, center):
    """Gradient in c once the sites are eliminated, one site at a time."""
    gradient = np.zeros(len(center))
    for k in range(len(theta)):
        deviation = center - theta[k]
        distance = np.linalg.norm(deviation)
        gradient += weight[k] * deviation * (1.0 if distance <= threshold[k] else threshold[k] / distance)
    return gradient


def huber_value(theta, weight, threshold, center):
    total = 0.0
    for k in range(len(theta)):
        d, tau = np.linalg.norm(theta[k] - center), threshold[k]
        total += weight[k] * (0.5 * d * d if d <= tau else tau * d - 0.5 * tau * tau)
    return total


cases = st.tuples(
    st.integers(0, 10_000),
    st.integers(1, 6),
    st.integers(1, 3),
    st.lists(st.sampled_from([0.0, 0.01, 0.3, 1.0, 3.0, 10.0, np.inf]), min_size=6, max_size=6),
)


def one_component(case):
    seed, n_sites, n_parameters, thresholds = case
    theta, weight, _ = problem(seed, n_sites, 1, n_parameters)
    threshold = np.array(thresholds[:n_sites])[:, None]
    start = np.median(theta, axis=0)
    return theta, weight, threshold, start


def test_infinite_threshold_puts_every_site_at_the_weighted_mean():
    theta, weight, _ = problem(0, 5, 2, 3)
    solution = solve(theta, weight, np.full((5, 2), np.inf), np.zeros((2, 3)))
    mean = np.einsum("kr,krq->rq", weight, theta) / weight.sum(axis=0)[:, None]
    np.testing.assert_allclose(solution.center, mean, rtol=1e-14)
    np.testing.assert_array_equal(solution.shrunk, np.broadcast_to(solution.center, theta.shape))
    assert float(solution.gap) <= 1e-14


def test_two_sites_with_infinite_threshold_meet_exactly_at_the_plain_mean():
    theta = np.array([[[0.0, 2.0]], [[4.0, 0.0]]])
    solution = solve(theta, np.ones((2, 1)), np.full((2, 1), np.inf), np.zeros((1, 2)))
    np.testing.assert_array_equal(solution.shrunk, np.array([[[2.0, 1.0]], [[2.0, 1.0]]]))


def test_zero_threshold_keeps_every_site_and_reports_the_weighted_mean():
    theta, weight, _ = problem(1, 5, 2, 3)
    solution = solve(theta, weight, np.zeros((5, 2)), np.zeros((2, 3)))
    np.testing.assert_allclose(solution.shrunk, theta, rtol=1e-14)
    mean = np.einsum("kr,krq->rq", weight, theta) / weight.sum(axis=0)[:, None]
    np.testing.assert_allclose(solution.center, mean, rtol=1e-14)


def test_a_component_without_any_penalty_does_not_spoil_the_others():
    theta, weight, threshold = problem(2, 5, 2, 3)
    threshold[:, 0] = 0.0
    solution = solve(theta, weight, threshold, np.zeros((2, 3)))
    alone = solve(theta[:, 1:], weight[:, 1:], threshold[:, 1:], np.zeros((1, 3)))
    assert np.all(np.isfinite(solution.center))
    np.testing.assert_allclose(solution.center[1], alone.center[0], rtol=1e-8)
    np.testing.assert_allclose(solution.shrunk[:, 0], theta[:, 0], rtol=1e-14)


@given(cases)
def test_scipy_finds_no_better_point_of_the_joint_problem(case):
    theta, weight, threshold, start = one_component(case)
    n_sites, _, q = theta.shape
    solution = solve(theta, weight, threshold, start)
    t, m, tau = theta[:, 0], weight[:, 0], threshold[:, 0]
    shrunk, center = solution.shrunk[:, 0], solution.center[0]
    # An infinite threshold ties a site to the center: a finite one beyond any gain says the same without inf - inf.
    finite = np.where(np.isinf(tau), 1e4, tau)
    ours = joint_objective(t, m, finite, shrunk, center)

    def joint(z):
        return joint_objective(t, m, finite, z[q:].reshape(n_sites, q), z[:q])

    found = minimize(joint, np.concatenate([center, shrunk.ravel()]), method="Powell", options={"maxiter": 10})
    assert ours <= found.fun + 1e-8 * (1.0 + abs(found.fun))


@given(cases)
def test_the_certificate_is_the_gradient_norm_and_bounds_the_loss(case):
    theta, weight, threshold, start = one_component(case)
    solution = solve(theta, weight, threshold, start)
    t, m, tau = theta[:, 0], weight[:, 0], threshold[:, 0]
    center, gap = solution.center[0], float(solution.gap)
    if np.any(tau > 0):
        gradient = huber_gradient(t, m, tau, center)
        assert gap == pytest.approx(np.linalg.norm(gradient) / m.sum(), abs=1e-12)
    reference = minimize(
        lambda c: huber_value(t, m, tau, c), start[0], jac=lambda c: huber_gradient(t, m, tau, c), method="BFGS"
    )
    # Convexity: F(c) - F(c') <= |grad F(c)| |c - c'|.
    loss = huber_value(t, m, tau, center) - reference.fun
    assert loss <= m.sum() * gap * np.linalg.norm(center - reference.x) + 1e-10 * (1.0 + abs(reference.fun))


@given(cases)
def test_the_gap_is_within_the_tolerance_asked_for(case):
    theta, weight, threshold, start = one_component(case)
    solution = solve(theta, weight, threshold, start)
    rounding = 1e-14 * (1.0 + np.abs(theta).max())
    assert float(solution.gap) <= 1e-10 * np.linalg.norm(theta - start, axis=-1).max() + rounding


@pytest.mark.parametrize("method", [solve, None], ids=["exact", "alternating"])
def test_a_site_within_its_threshold_sits_exactly_on_the_center(method):
    theta, weight, threshold = problem(3, 6, 3, 2, spread=1.0)
    if method is None:
        solution = alternate(theta, weight, threshold, sweeps=4)
    else:
        solution = method(theta, weight, threshold, np.zeros((3, 2)))
    close = np.linalg.norm(theta - solution.center, axis=-1) <= threshold
    assert close.any()
    assert not close.all()
    on_center = np.all(solution.shrunk == solution.center, axis=-1)
    np.testing.assert_array_equal(on_center, close)


def test_a_site_beyond_its_threshold_moves_by_exactly_its_threshold():
    theta, weight, threshold = problem(4, 6, 3, 2)
    solution = solve(theta, weight, threshold, np.zeros((3, 2)))
    distance = np.linalg.norm(theta - solution.center, axis=-1)
    moved = np.linalg.norm(theta - solution.shrunk, axis=-1)
    np.testing.assert_allclose(moved, np.minimum(distance, threshold), rtol=1e-12)


@given(st.permutations(range(6)))
def test_the_order_of_the_sites_does_not_matter(order):
    theta, weight, threshold = problem(5, 6, 2, 3)
    start = np.zeros((2, 3))
    plain = solve(theta, weight, threshold, start)
    shuffled = solve(theta[order], weight[order], threshold[order], start)
    np.testing.assert_allclose(shuffled.center, plain.center, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(shuffled.shrunk, plain.shrunk[order], rtol=1e-9, atol=1e-9)


@given(
    st.lists(st.floats(-100.0, 100.0), min_size=3, max_size=3),
    st.sampled_from([1e-3, 0.1, 7.0, 1e4]),
)
def test_shifting_and_scaling_the_estimates_shifts_and_scales_the_answer(shift, scale):
    theta, weight, threshold = problem(6, 5, 2, 3)
    start = np.zeros((2, 3))
    plain = solve(theta, weight, threshold, start)
    moved = solve(scale * theta + shift, weight, scale * threshold, scale * start + shift)
    accuracy = 1e-8 * scale + 1e-13 * np.abs(shift).max()
    np.testing.assert_allclose(moved.center, scale * plain.center + shift, rtol=0, atol=accuracy)
    np.testing.assert_allclose(moved.shrunk, scale * plain.shrunk + shift, rtol=0, atol=accuracy)


def test_weights_matter_only_in_proportion():
    theta, weight, threshold = problem(7, 5, 2, 3)
    start = np.zeros((2, 3))
    plain, heavy = (solve(theta, factor * weight, threshold, start) for factor in (1.0, 1e6))
    np.testing.assert_allclose(heavy.center, plain.center, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("distance", [1e1, 1e3, 1e6, 1e9, 1e12, 1e15, 1e150])
def test_one_hostile_site_moves_the_center_by_no_more_than_its_influence(distance):
    # The honest sites lie well within their thresholds, where Huber's problem is quadratic: the hostile site pulls with
    # force m tau at most, against the mass of all the honest ones.
    generator = np.random.default_rng(8)
    honest = generator.uniform(-0.1, 0.1, size=(6, 1, 2))
    weight, threshold = generator.uniform(1.0, 2.0, size=(7, 1)), np.full((7, 1), 1.0)
    clean = solve(honest, weight[:6], threshold[:6], np.zeros((1, 2)))
    hostile = np.concatenate([honest, [[[distance, 0.0]]]])
    solution = solve(hostile, weight, threshold, np.zeros((1, 2)))
    moved = (solution.center - clean.center)[0]
    force = weight[6, 0] * threshold[6, 0] / weight[:6].sum()
    np.testing.assert_allclose(moved[0], force, rtol=0.02)
    assert np.linalg.norm(moved) <= force * (1 + 1e-6)


@pytest.mark.parametrize("distance", [1e6, 1e9, 1e12, 1e15])
def test_a_hostile_site_in_one_component_does_not_loosen_the_others(distance):
    theta, weight, threshold = problem(9, 6, 2, 3)
    alone = solve(theta[:, 1:], weight[:, 1:], threshold[:, 1:], np.zeros((1, 3)))
    theta[0, 0] = distance
    solution = solve(theta, weight, threshold, np.zeros((2, 3)))
    np.testing.assert_allclose(solution.center[1], alone.center[0], rtol=1e-7, atol=1e-8)


def test_identical_sites_are_solved_at_once():
    theta = np.tile(np.array([[[0.1, 0.2, 0.3]]]), (7, 1, 1))
    weight = np.linspace(1.0, 2.3, 7)[:, None]
    solution = solve(theta, weight, np.ones((7, 1)), theta[0])
    np.testing.assert_allclose(solution.center, theta[0], rtol=1e-14)
    assert int(solution.iterations) <= 2


@pytest.mark.parametrize("seed", range(3))
def test_many_sweeps_of_the_paper_reach_the_exact_solution(seed):
    theta, weight, threshold = problem(seed, 5, 2, 3)
    exact = solve(theta, weight, threshold, np.zeros((2, 3)))
    swept = alternate_to_center(theta, weight, threshold, sweeps=300)
    np.testing.assert_allclose(swept.center, exact.center, atol=1e-7)
    np.testing.assert_allclose(swept.shrunk, exact.shrunk, atol=1e-7)
    assert float(swept.gap) < 1e-7


def test_two_sweeps_are_the_paper_steps_ii_and_iii_twice():
    theta, _, _ = problem(10, 5, 2, 3)
    n, penalty = 50.0, 12.0
    tau = penalty / np.sqrt(n)
    expected_center, expected = np.empty((2, 3)), np.empty((5, 2, 3))
    for r in range(2):
        delta = np.zeros((5, 3))
        for _ in range(2):
            center = np.zeros(3)
            for k in range(5):
                center += (theta[k, r] - delta[k]) / 5
            for k in range(5):
                deviation = theta[k, r] - center
                distance = np.linalg.norm(deviation)
                delta[k] = (1 - tau / distance) * deviation if distance >= tau else 0.0
        expected_center[r], expected[:, r] = center, center + delta
    solution = alternate(theta, np.full((5, 2), n), np.full((5, 2), tau), sweeps=2)
    np.testing.assert_allclose(solution.center, expected_center, rtol=1e-13)
    np.testing.assert_allclose(solution.shrunk, expected, rtol=1e-13)


def test_the_gap_of_two_sweeps_is_the_gradient_norm_they_left():
    theta, weight, threshold = problem(11, 5, 1, 3)
    solution = alternate(theta, weight, threshold, sweeps=2)
    gradient = huber_gradient(theta[:, 0], weight[:, 0], threshold[:, 0], solution.center[0])
    assert float(solution.gap) == pytest.approx(np.linalg.norm(gradient) / weight.sum(), rel=1e-10)
    assert float(solution.gap) > 1e-6


def test_soft_threshold_shortens_a_3_4_5_deviation_by_one():
    moved = shrink(np.array([[[3.0, 4.0]]]), np.zeros((1, 2)), np.array([[1.0]]))
    np.testing.assert_allclose(moved[0, 0], [2.4, 3.2], rtol=1e-15)


def test_a_site_at_the_center_stays_there_for_every_threshold():
    theta = np.ones((3, 1, 2))
    moved = shrink(theta, theta[0], np.array([[0.0], [1.0], [np.inf]]))
    np.testing.assert_array_equal(moved, theta)


def test_lengths_in_other_units_decide_who_moves_and_by_how_much():
    theta, center = np.array([[6.0, 0.0], [1.0, 0.0]]), np.zeros((2, 2))
    moved = shrink(theta, center, np.array([1.0, 1.0]), length=np.array([2.0, 0.9]))
    np.testing.assert_array_equal(moved, [[3.0, 0.0], [0.0, 0.0]])


def test_problems_side_by_side_are_solved_as_if_each_were_alone():
    problems = [problem(seed, 6, 2, 3) for seed in range(4)]
    problems[2][2][:] = 0.0  # one without a penalty
    problems[3][1][:] = 0.0  # and one in which nobody has a say
    together = solve(*(np.stack(parts, axis=1) for parts in zip(*problems, strict=True)), np.zeros((4, 2, 3)))
    for b, (theta, weight, threshold) in enumerate(problems):
        alone = solve(theta, weight, threshold, np.zeros((2, 3)))
        np.testing.assert_array_equal(together.center[b], alone.center)
        np.testing.assert_array_equal(together.shrunk[:, b], alone.shrunk)


def test_where_nobody_has_a_say_the_center_stays():
    theta, _, threshold = problem(12, 4, 2, 3)
    start = np.random.default_rng(0).normal(size=(2, 3))
    solution = solve(theta, np.zeros((4, 2)), threshold, start)
    np.testing.assert_array_equal(solution.center, start)
    assert float(solution.gap) == 0.0


def test_nothing_given_is_written_to():
    theta, weight, threshold = problem(13, 4, 2, 3)
    given = [theta, weight, threshold, np.zeros((2, 3))]
    before = [a.copy() for a in given]
    solve(*given)
    alternate(*given[:3], sweeps=2)
    shrink(theta, given[3], threshold)
    for kept, now in zip(before, given, strict=True):
        np.testing.assert_array_equal(now, kept)


def test_a_site_that_reports_a_million_rows_weighs_ten_medians():
    np.testing.assert_allclose(
        capped_rows(np.array([100.0, 90.0, 110.0, 1e6])), [100.0, 90.0, 110.0, WEIGHT_CAP * 105.0]
    )


@given(st.integers(0, 10_000), st.integers(1, 3))
def test_a_minority_of_far_sites_is_not_trusted_and_the_others_are(seed, n_far):
    generator = np.random.default_rng(seed)
    theta = generator.normal(size=(9, 1, 4))
    theta[:n_far] += 1e3
    trusted = trust(theta, np.full((9, 1), 50.0), np.zeros((1, 4)))
    np.testing.assert_array_equal(trusted[:n_far], 0.0)
    np.testing.assert_array_equal(trusted[n_far:], 1.0)


def test_a_small_site_may_be_farther_off_before_it_is_trusted_less():
    theta = np.array([1.0, 1.0, 1.0, 1.0, 8.0])[:, None, None]
    held = np.array([100.0, 100.0, 100.0, 100.0, 1.0])[:, None]
    assert trust(theta, held, np.zeros((1, 1)))[-1, 0] == 1.0
    assert trust(theta, np.full((5, 1), 100.0), np.zeros((1, 1)))[-1, 0] == 0.0


def test_only_those_present_say_what_distance_is_usual():
    theta = np.array([1.0, 1.0, 1.0, 60.0, 70.0, 80.0, 90.0])[:, None, None]
    present = np.array([True] * 4 + [False] * 3)
    assert trust(theta, np.ones((7, 1)), np.zeros((1, 1)), present)[3, 0] == 0.0
    assert trust(theta, np.ones((7, 1)), np.zeros((1, 1)))[3, 0] == 1.0


def test_where_most_sites_agree_exactly_all_count():
    theta = np.array([0.0, 0.0, 0.0, 0.0, 5.0])[:, None, None]
    np.testing.assert_array_equal(trust(theta, np.ones((5, 1)), np.zeros((1, 1))), 1.0)


# -- how much sites truly differ


def differing(seed, between, n_sites=20, n_components=3, size=10):
    generator = np.random.default_rng(seed)
    rows = generator.uniform(10.0, 80.0, size=(n_sites, n_components))
    away = generator.normal(size=(n_sites, n_components, size)) * np.sqrt(between + 1.0 / rows)[..., None]
    return away, rows


@pytest.mark.parametrize("between", [0.05, 0.3, 2.0])
def test_the_between_site_variance_is_found(between):
    found = [between_sites(*differing(seed, between), np.zeros((3, 10)))[0].mean() for seed in range(30)]
    assert np.mean(found) == pytest.approx(between, rel=0.1)


def test_sites_that_are_alike_are_found_to_be_so_and_trusted():
    told = [between_sites(*differing(seed, 0.0), np.zeros((3, 10))) for seed in range(30)]
    assert np.mean([(between == 0).all() for between, _ in told]) >= 0.9
    assert np.mean([trust.min() for _, trust in told]) > 0.95


@pytest.mark.parametrize("far", [3.0, 1e3, 1e100])
@pytest.mark.parametrize("bad", [2, 4, 8])
def test_a_minority_cannot_move_the_between_site_variance_beyond_what_honest_sites_vary(bad, far):
    for seed in range(10):
        theta, rows = differing(seed, 0.2)
        plain, _ = between_sites(theta[bad:], rows[bad:], np.zeros((3, 10)))
        theta[:bad] = far * np.sign(theta[:bad])
        with np.errstate(over="ignore"):
            between, trust = between_sites(theta, rows, np.zeros((3, 10)))
        assert (between <= 3.0 * plain).all()
        assert (between >= plain / 3.0).all()
        if far > 100:
            assert (trust[:bad] == 0).all()


def test_sites_that_were_not_heard_count_for_nothing():
    theta, rows = differing(0, 0.2)
    theta[3] = 1e6
    present = np.arange(20) != 3
    between, _ = between_sites(theta, rows, np.zeros((3, 10)), present)
    without, _ = between_sites(theta[present], rows[present], np.zeros((3, 10)))
    np.testing.assert_allclose(between, without)


def test_one_component_that_differs_does_not_hide_behind_the_others():
    theta, rows = differing(1, 0.0)
    theta[:, 0] += np.random.default_rng(2).normal(size=(20, 10))
    between, _ = between_sites(theta, rows, np.zeros((3, 10)))
    assert between[0] > 0.3
    assert (between[1:] < 0.05).all()


def test_a_search_begun_far_from_few_sites_comes_back():
    for seed in range(300):
        generator = np.random.default_rng(seed)
        n_sites, size = int(generator.integers(1, 4)), int(generator.integers(1, 4))
        theta, start = generator.normal(size=(n_sites, 1, size)), 100.0 * generator.normal(size=(1, size))
        weight, threshold = generator.uniform(0.2, 3.0, size=(2, n_sites, 1))
        found = shrink_to_center(theta, weight, 0.3 * threshold, start)
        assert np.abs(found.center).max() <= np.abs(theta).max() + 1e-9, f"seed {seed}"
        assert found.gap < 1e-9, f"seed {seed}"
