"""Tables of mixed columns: coordinates, missing cells, robust columns, and plain EM of other packages."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from stepmix import StepMix

from fedgrem.data.columns import Column
from fedgrem.data.federation import Site, stack_sites
from fedgrem.families.base import weights_of
from fedgrem.families.covariance import Diagonal, Full, Tied
from fedgrem.families.gaussian import Gaussian
from fedgrem.families.parts import LEAST_CHANCE, Categories, Counts, chances, on_the_map, root_slopes
from fedgrem.families.table import Table
from fedgrem.types import Params
from tests.conformance.families import unpadded

AGE, RATE, CHOL = (Column(name, "continuous") for name in ("age", "rate", "chol"))
FAR = Column("far", "robust")
MALE = Column("male", "binary", ("no", "yes"))
PAIN = Column("pain", "categorical", ("none", "some", "much"))
VISITS = Column("visits", "count")
ALL = (PAIN, AGE, MALE, VISITS, RATE, FAR)


def rows_of(types, seed, n, missing=0.0):
    """Rows of two groups, coded, some cells missing."""
    generator = np.random.default_rng(seed)
    group = generator.integers(2, size=n)
    cells = {
        "pain": lambda: np.where(group, generator.choice(3, size=n, p=[0.1, 0.2, 0.7]), generator.choice(3, size=n)),
        "male": lambda: generator.random(n) < np.where(group, 0.8, 0.3),
        "visits": lambda: generator.poisson(np.where(group, 7.0, 2.0)),
        "far": lambda: np.where(group, 2.0, -1.0) + generator.standard_t(3, size=n),
    }
    plain = lambda: np.where(group, 1.5, -1.5) + generator.normal(size=n)  # noqa: E731 - a default beside the others
    rows = np.column_stack([cells.get(column.name, plain)() for column in types]).astype(float)
    rows[generator.random(rows.shape) < missing] = np.nan
    return rows


def stack_of(rows, weight=None):
    site = Site("a", rows, None, np.ones(len(rows)) if weight is None else weight)
    return unpadded(site, gaps=bool(np.isnan(rows).any()))


def some_params(family, seed=0, n_components=2):
    generator = np.random.default_rng(seed)
    lay = family.layout
    theta = 0.4 * generator.normal(size=(1, n_components, lay.size))
    for part, q, _ in lay.plain:
        if isinstance(part, Counts):
            theta[..., q] = generator.uniform(2.0, 5.0, size=theta[..., q].shape)
    shape = family.noise_shape(n_components, len(family.types))
    noise = None if shape is None else 0.2 * generator.normal(size=(1, *shape))
    if noise is not None and lay.robust is not None and family.degrees is None:
        noise[..., -len(lay.robust.columns) :] = np.log(5.0)
    weights = generator.dirichlet(np.full(n_components, 5.0))
    return Params(weights[None], theta, noise)


def joint_by_hand(family, rows, params):
    """(R, n) log weights plus log densities of what is seen, row by row with SciPy."""
    lay, found = family.layout, np.log(params.weights[0])[:, None].repeat(len(rows), axis=1)
    for r, theta in enumerate(params.theta[0]):
        c = 0 if family.covariance.shared else r
        means = family.means(theta)
        for j, column in enumerate(family.types):
            cells, seen = rows[:, j], ~np.isnan(rows[:, j])
            own = means[[e for e, (place, _) in enumerate(family.mean_columns) if place == j]]
            if column.kind in ("binary", "categorical"):
                p = np.array([1.0 - own[0], own[0]]) if column.kind == "binary" else own
                found[r, seen] += np.log(p[cells[seen].astype(int)])
            elif column.kind == "count":
                found[r, seen] += stats.poisson.logpmf(cells[seen], own[0])
            elif column.kind == "robust":
                noise = params.noise[0, c, lay.noise[1]]
                nu = family.degrees or np.exp(noise[1])
                found[r, seen] += stats.t.logpdf(cells[seen], nu, own[0], np.exp(noise[0]))
        if lay.continuous is not None:
            columns = list(lay.continuous.columns)
            matrix = family.covariance.matrices(params.noise[0, c, lay.noise[0]], len(columns))
            for i, row in enumerate(rows[:, columns]):
                there = ~np.isnan(row)
                if there.any():
                    mean, block = theta[lay.theta[0]][there], matrix[np.ix_(there, there)]
                    found[r, i] += stats.multivariate_normal(mean, block).logpdf(row[there])
    return found


# -- coordinates in which an error of one over the root of the rows is a unit


@pytest.mark.parametrize("n_levels", [2, 3, 5])
def test_probabilities_are_a_way_there_and_back_and_an_even_choice_is_the_origin(n_levels):
    p = np.random.default_rng(0).dirichlet(np.ones(n_levels), size=50)
    np.testing.assert_allclose(chances(on_the_map(p), n_levels), p, atol=1e-12)
    np.testing.assert_allclose(on_the_map(np.full(n_levels, 1.0 / n_levels)), 0.0, atol=1e-12)
    corners = on_the_map(np.eye(n_levels))  # of which no probability is too small to be put on the map
    np.testing.assert_allclose(chances(corners, n_levels), np.eye(n_levels), atol=1e-12)


def test_a_yes_no_column_has_the_arcsine_of_the_root():
    p = np.linspace(0.0, 1.0, 11)
    np.testing.assert_allclose(
        on_the_map(np.column_stack([1.0 - p, p]))[:, 0], 2.0 * np.arcsin(np.sqrt(p)) - np.pi / 2.0, atol=1e-12
    )


@pytest.mark.parametrize("n_levels", [2, 3, 4, 6])
def test_what_a_row_tells_of_every_coordinate_is_about_one_wherever_the_probabilities_are(n_levels):
    theta = on_the_map(np.random.default_rng(1).dirichlet(np.full(n_levels, 0.5), size=200))
    slopes = root_slopes(theta, n_levels)
    told = np.linalg.eigvalsh(4.0 * slopes @ slopes.swapaxes(-1, -2))  # the Fisher information of one row
    assert told.max() <= 1.0 + 1e-9
    assert told.min() >= (1.0 if n_levels == 2 else 0.5) - 1e-9


def test_errors_of_estimates_have_the_variance_of_a_unit_over_the_rows():
    generator, n = np.random.default_rng(2), 400
    shares = generator.multinomial(n, [0.05, 0.25, 0.7], size=4000) / n
    found = n * np.cov(on_the_map(shares).T)
    np.testing.assert_allclose(np.linalg.eigvalsh(found), 1.0, atol=0.35)
    roots = 2.0 * np.sqrt(generator.poisson(3.0, size=(4000, n)).mean(axis=1))
    assert n * roots.var() == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("part", [Categories((0, 1), 3), Categories((0,), 2), Counts((0, 1))], ids=repr)
def test_slopes_curvatures_and_scores_agree_with_finite_differences(part):
    generator = np.random.default_rng(3)
    rows = generator.integers(part.n_levels if isinstance(part, Categories) else 9, size=(1, 30, 2)).astype(float)
    seen = generator.random(rows.shape) < 0.8
    theta = generator.uniform(0.3, 0.9, size=part.n_parameters) + (2.0 if isinstance(part, Counts) else 0.0)
    features = part.features(rows, seen)[0]
    sums, width = features.sum(axis=0), 1e-5

    def q(at):
        return float(part.natural(at, None) @ sums)

    shifts = width * np.eye(len(theta))
    slope = np.array([(q(theta + s) - q(theta - s)) / (2.0 * width) for s in shifts])
    np.testing.assert_allclose(part.slope(sums, theta, None), slope, rtol=1e-6, atol=1e-6)
    bends = [(part.slope(sums, theta - s, None) - part.slope(sums, theta + s, None)) / (2.0 * width) for s in shifts]
    np.testing.assert_allclose(part.curved(sums, theta, None), np.array(bends), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(part.scores(rows[0], seen[0], theta, None).sum(axis=0), slope, rtol=1e-6, atol=1e-6)


def test_the_m_step_of_shares_and_rates_is_what_a_textbook_says():
    part, counts = Categories((0,), 3), np.array([[6.0, 3.0, 1.0], [0.0, 0.0, 0.0]])
    theta, rests_on = part.solve(counts, np.full((2, 2), 0.3), 0.0)
    np.testing.assert_allclose(chances(theta[0], 3), [0.6, 0.3, 0.1], atol=1e-12)
    np.testing.assert_array_equal(theta[1], 0.3)  # a component without a row stays where it is
    np.testing.assert_array_equal(rests_on, [[10.0, 10.0], [0.0, 0.0]])
    rate, _ = Counts((0,)).solve(np.array([[5.0, 20.0]]), np.ones((1, 1)), 0.0)
    assert rate[0, 0] ** 2 / 4.0 == pytest.approx(4.0)


def test_a_level_that_a_component_has_not_met_is_rare_in_it_but_not_impossible():
    counts = np.array([[10.0, 0.0], [5.0, 5.0]])
    theta, _ = Categories((0,), 2).solve(counts, np.zeros((2, 1)), 2.0)
    assert LEAST_CHANCE < chances(theta[0], 2)[1] < 0.06
    assert chances(theta[1], 2)[1] == pytest.approx((5.0 + 2.0 * 5.5 / 21.0) / 12.0)


# -- cells that are missing


@pytest.mark.parametrize("covariance", [Diagonal(), Tied(), Full()], ids=lambda s: s.name)
@pytest.mark.parametrize("degrees", [4.0, None])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_an_e_step_is_scipys_on_what_is_seen_of_every_row(covariance, degrees, missing):
    family = Table(ALL, covariance, degrees)
    rows = rows_of(ALL, 4, 60, missing)
    stack, params = stack_of(rows), some_params(family)
    joint = joint_by_hand(family, rows, params)
    order = Site("a", rows, None, np.ones(60)).ordered()
    shares, value = family.row_scores(stack, params)
    np.testing.assert_allclose(value[0], logsumexp(joint, axis=0)[order], rtol=1e-9)
    expected = np.exp(joint - logsumexp(joint, axis=0))[:, order]
    np.testing.assert_allclose(shares[0], expected, rtol=1e-7, atol=1e-10)
    sums = family.expect(stack, params)
    assert sums.log_likelihood[0] == pytest.approx(value.sum())
    np.testing.assert_allclose(sums.held[0], expected.sum(axis=1), rtol=1e-9)


@pytest.mark.parametrize("covariance", [Tied(), Full()], ids=lambda s: s.name)
def test_correlated_columns_with_gaps_are_those_of_the_gaussian_family(covariance):
    rows = rows_of((AGE, RATE, CHOL), 5, 80, 0.25)
    stack = stack_of(rows)
    table, gaussian = Table((AGE, RATE, CHOL), covariance), Gaussian(covariance)
    params = some_params(table)
    mine, theirs = (family.expect(stack, params) for family in (table, gaussian))
    assert mine.log_likelihood[0] == pytest.approx(theirs.log_likelihood[0])
    np.testing.assert_allclose(mine.features[..., :4], theirs.features[..., :4], rtol=1e-9, atol=1e-9)
    for family in (table, gaussian):
        family.maximize(stack, params, mine if family is table else theirs)
    noises = [f.noise_step(s, params.theta, params.noise) for f, s in ((table, mine), (gaussian, theirs))]
    np.testing.assert_allclose(noises[0], noises[1], rtol=1e-8, atol=1e-8)
    information = [family.information(stack, params) for family in (table, gaussian)]
    np.testing.assert_allclose(information[0], information[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("covariance", [Diagonal(), Tied(), Full()], ids=lambda s: s.name)
@pytest.mark.parametrize("degrees", [4.0, None])
def test_em_never_lowers_the_likelihood_of_what_is_seen(covariance, degrees):
    family = Table(ALL, covariance, degrees, prior_rows=0.0, reg_covar=0.0)
    stack, params = stack_of(rows_of(ALL, 6, 150, 0.15)), some_params(family)
    before = -np.inf
    for _ in range(40):
        sums = family.expect(stack, params)
        assert sums.log_likelihood[0] >= before - 1e-8
        before = sums.log_likelihood[0]
        theta = family.maximize(stack, params, sums)
        params = Params(weights_of(sums), theta, family.noise_step(sums, theta, params.noise))


def test_a_column_without_a_cell_moves_nothing_and_nobody():
    family = Table(ALL)
    rows = rows_of(ALL, 7, 60)
    rows[:, [1, 3]] = np.nan  # age and visits
    stack, params = stack_of(rows), some_params(family)
    sums = family.expect(stack, params)
    moved = family.maximize(stack, params, sums)
    for column in (1, 3):
        own = family.coordinates_of(column)
        np.testing.assert_allclose(moved[..., own], params.theta[..., own], atol=1e-9)
    other = params._replace(theta=params.theta.copy())
    for column in (1, 3):
        other.theta[..., family.coordinates_of(column)] += 3.0
    assert family.expect(stack, other).log_likelihood[0] == pytest.approx(sums.log_likelihood[0])
    assert np.isfinite(family.information(stack, params)).all()


def test_rows_of_many_patterns_are_met_in_the_memory_of_a_block():
    import tracemalloc

    types = tuple(Column(f"x{j}", "continuous") for j in range(14))
    generator = np.random.default_rng(8)
    rows = generator.normal(size=(920, 14))
    rows[generator.random(rows.shape) < 0.05] = np.nan
    family, stack = Table(types, Full()), stack_of(rows)
    params = some_params(family, n_components=4)
    tracemalloc.start()
    family.expect(stack, params)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 30e6  # bytes; G of every row and component alone would be 5.8 MB times the fits


def test_blocks_of_rows_with_gaps_are_the_same_rows(monkeypatch):
    from fedgrem.data import stack as stacks

    family = Table(ALL, Full(), None)
    stack, params = stack_of(rows_of(ALL, 9, 700, 0.1)), some_params(family)
    whole = family.expect(stack, params)
    monkeypatch.setattr(stacks, "CACHE", 300)
    parts = family.expect(stack, params)
    np.testing.assert_allclose(parts.features, whole.features, rtol=1e-9, atol=1e-8)
    assert parts.log_likelihood[0] == pytest.approx(whole.log_likelihood[0])


def test_neighbours_in_a_stack_change_nothing_where_cells_are_missing():
    family = Table(ALL, Tied())
    sites = [Site(f"s{k}", rows_of(ALL, 10 + k, 30 + k, 0.2), None, np.ones(30 + k)) for k in range(3)]
    one = some_params(family)
    params = Params(*(np.repeat(leaf, 3, axis=0) for leaf in one))
    together = family.expect(stack_sites(sites, gaps=True), params)
    for k, site in enumerate(sites):
        alone = family.expect(stack_sites([site], gaps=True), one)
        np.testing.assert_allclose(together.features[k], alone.features[0], rtol=1e-10, atol=1e-10)
        both = stack_sites(sites, gaps=True), unpadded(site, gaps=True)
        drawn = [family.draw(stack, 0, "start", 2, 2, None) for stack in both]
        np.testing.assert_allclose(drawn[0][k], drawn[1][0], atol=1e-9)


# -- robust columns


def test_robust_columns_find_location_scale_and_degrees_where_gaussian_ones_do_not():
    rows = 5.0 + 2.0 * stats.t.rvs(3.0, size=(4000, 1), random_state=0)
    family = Table((FAR,), degrees=None, prior_rows=0.0)
    stack = stack_of(rows)
    params = Params(np.ones((1, 1)), np.zeros((1, 1, 1)), np.array([[[0.0, np.log(8.0)]]]))
    for _ in range(200):
        sums = family.expect(stack, params)
        theta = family.maximize(stack, params, sums)
        params = Params(np.ones((1, 1)), theta, family.noise_step(sums, theta, params.noise))
    found = np.array([params.theta[0, 0, 0], *np.exp(params.noise[0, 0])])
    np.testing.assert_allclose(found, [5.0, 2.0, 3.0], rtol=0.1)

    def value(at):
        return stats.t.logpdf(rows[:, 0], at[2], at[0], at[1]).sum()

    for shift in 1e-2 * np.eye(3):  # it is the maximum
        assert value(found) > max(value(found + shift), value(found - shift))


# -- equality with plain EM, from the same start


def em_of(family, stack, params, iterations):
    for _ in range(iterations):
        sums = family.expect(stack, params)
        theta = family.maximize(stack, params, sums)
        params = Params(weights_of(sums), theta, family.noise_step(sums, theta, params.noise))
    return params, float(family.expect(stack, params).log_likelihood[0])


@pytest.mark.parametrize(("covariance", "kind"), [(Diagonal(), "diag"), (Tied(), "tied"), (Full(), "full")])
def test_one_site_of_continuous_columns_is_scikit_learns_mixture(covariance, kind):
    rows = rows_of((AGE, RATE), 11, 200)
    start = np.array([[1.0, 0.5], [-1.0, 0.2]])
    theirs = GaussianMixture(
        2, covariance_type=kind, means_init=start, weights_init=[0.5, 0.5], tol=1e-12, max_iter=2000, reg_covar=1e-6,
        precisions_init={"diag": np.ones((2, 2)), "tied": np.eye(2), "full": np.tile(np.eye(2), (2, 1, 1))}[kind],
    ).fit(rows)  # fmt: skip
    family = Table((AGE, RATE), covariance, prior_rows=0.0)
    shape = family.noise_shape(2, 2)
    begin = Params(np.full((1, 2), 0.5), start[None], np.zeros((1, *shape)))
    _, value = em_of(family, stack_of(rows), begin, 2000)
    assert value / 200 == pytest.approx(theirs.score(rows), abs=1e-6)


def plain_em(types, rows, weights, tables, iterations):
    """Latent classes by the textbook: shares of levels, means and variances, rates, over the cells that are there."""
    n, value = len(rows), 0.0
    for _ in range(iterations + 1):
        joint = np.log(weights)[:, None].repeat(n, axis=1)
        for j, column in enumerate(types):
            x, seen = rows[:, j], ~np.isnan(rows[:, j])
            for r in range(len(weights)):
                own = tables[j][r]
                if column.levels:
                    joint[r, seen] += np.log(own[x[seen].astype(int)])
                elif column.kind == "count":
                    joint[r, seen] += stats.poisson.logpmf(x[seen], own[0])
                else:
                    joint[r, seen] += stats.norm.logpdf(x[seen], own[0], np.sqrt(own[1]))
        value = logsumexp(joint, axis=0).sum()
        mass = np.exp(joint - logsumexp(joint, axis=0))
        weights = mass.sum(axis=1) / n
        for j, column in enumerate(types):
            seen = ~np.isnan(rows[:, j])
            x, m = rows[seen, j], mass[:, seen]
            if column.levels:
                shares = np.stack([m @ (x == level) for level in range(len(column.levels))], axis=1)
                tables[j] = shares / m.sum(axis=1, keepdims=True)
            else:
                mean = m @ x / m.sum(axis=1)
                variance = (m * (x - mean[:, None]) ** 2).sum(axis=1) / m.sum(axis=1)
                tables[j] = np.column_stack([mean, variance])
    return value


BERNOULLI = (MALE, *(Column(f"b{j}", "binary", ("no", "yes")) for j in range(4)))


@pytest.mark.parametrize(
    "types",
    [BERNOULLI, (PAIN, MALE, VISITS), (PAIN, MALE, AGE, RATE, VISITS)],
    ids=["bernoulli", "categorical", "mixed"],
)
@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_one_site_is_a_plain_latent_class_model_from_the_same_start(types, missing):
    known = {"pain": PAIN, "male": MALE, "visits": VISITS, "age": AGE, "rate": RATE}
    rows = rows_of([known.get(column.name, MALE) for column in types], 12, 250, missing)
    generator = np.random.default_rng(13)
    weights, tables, means = np.array([0.4, 0.6]), [], []
    for column in types:
        if column.levels:
            table = generator.dirichlet(np.full(len(column.levels), 5.0), size=2)
            means.append(table[:, 1:] if column.kind == "binary" else table)
        else:
            first = np.array([3.0, 6.0]) if column.kind == "count" else np.array([-0.5, 0.8])
            table = np.column_stack([first, np.ones(2)])
            means.append(first[:, None])
        tables.append(table)
    family = Table(types, prior_rows=0.0, reg_covar=0.0)
    theta = family.from_means(np.concatenate(means, axis=1))
    shape = family.noise_shape(2, len(types))
    begin = Params(weights[None], theta[None], None if shape is None else np.zeros((1, *shape)))
    _, value = em_of(family, stack_of(rows), begin, 60)
    assert value == pytest.approx(plain_em(types, rows, weights, tables, 60), abs=1e-6)


def stepmix(types, rows, iterations):
    """StepMix after some iterations from its own random start."""
    gaps = "_nan" if np.isnan(rows).any() else ""
    measures = {c.name: {"model": c.kind + gaps, "n_columns": 1} for c in types}
    model = StepMix(2, measurement=measures, max_iter=iterations, abs_tol=0.0, progress_bar=0, random_state=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # it was told to stop there
        return model.fit(rows)


@pytest.mark.parametrize(
    "types", [BERNOULLI, (PAIN, MALE), (PAIN, MALE, AGE, RATE)], ids=["bernoulli", "categorical", "mixed"]
)
@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_one_site_is_stepmix_from_the_same_start(types, missing):
    known = {"pain": PAIN, "male": MALE, "age": AGE, "rate": RATE}
    rows = rows_of([known.get(column.name, MALE) for column in types], 12, 250, missing)
    start = stepmix(types, rows, 1).get_parameters()
    told = [start["measurement"][column.name] for column in types]
    means = np.concatenate([one["pis"] if "pis" in one else one["means"] for one in told], axis=1)
    variances = [one["covariances"].reshape(2, -1)[:, :1] for one in told if "covariances" in one]
    family = Table(types, prior_rows=0.0, reg_covar=0.0)
    noise = 0.5 * np.log(np.concatenate(variances, axis=1))[None] if variances else None
    begin = Params(start["weights"][None], family.from_means(means)[None], noise)
    _, value = em_of(family, stack_of(rows), begin, 60)
    assert value == pytest.approx(len(rows) * stepmix(types, rows, 61).score(rows), abs=1e-6)


def test_means_are_a_way_there_and_back():
    family = Table(ALL, Full())
    params = some_params(family, 3)
    np.testing.assert_allclose(family.from_means(family.means(params.theta)), params.theta, atol=1e-9)
    levels = ("pain = none", "pain = some", "pain = much")
    assert family.mean_names == (*levels, "age", "male = yes", "visits", "rate", "far")


def test_coordinates_of_scales_are_a_way_there_and_back():
    for degrees in (4.0, None):
        family = Table(ALL, Full(), degrees)
        noise, other = (some_params(family, seed).noise[0] for seed in (4, 5))
        about = family.relative_noise(noise, other, len(ALL))
        np.testing.assert_allclose(family.absolute_noise(about, other, len(ALL)), noise, atol=1e-9)
        np.testing.assert_allclose(family.relative_noise(noise, noise, len(ALL)), 0.0, atol=1e-12)
        average = family.average_noise(np.stack([noise, noise]), np.array([0.3, 0.7]))
        np.testing.assert_allclose(average, noise, atol=1e-9)


def test_the_gradient_leads_to_the_m_step_by_the_rows_that_it_rests_on():
    family = Table(ALL, Diagonal())
    stack, params = stack_of(rows_of(ALL, 14, 50, 0.2)), some_params(family)
    sums = family.expect(stack, params)
    best = family.maximize(stack, params, sums)
    moved = family.ascend(stack, params, sums, 1.0)
    np.testing.assert_array_equal(moved.step_scale, 1.0)
    # Of a column with gaps, a step goes as much less far as there are fewer cells.
    way = (moved.theta - params.theta) / (best - params.theta)
    assert np.all((way > 0.5) & (way <= 1.0 + 1e-12))
    np.testing.assert_allclose(family.gradient(sums)(best), 0.0, atol=1e-9)
    assert replace(family) == family
