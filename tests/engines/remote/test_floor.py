"""The floor in every family and algorithm: few rows of a component do not stop a fit, or the site says why."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.algorithms.registry import ALGORITHMS
from fedgrem.data.stack import Stack
from fedgrem.engines.remote.engine import Answer
from fedgrem.engines.remote.floor import GONE, _left, answer_above, rows_alike, rows_held
from fedgrem.engines.remote.log import read_log
from fedgrem.engines.remote.roster import Rules
from fedgrem.engines.remote.run import fit_over_network
from fedgrem.engines.remote.site import DeclinedError, Settings
from fedgrem.errors import PausedError
from fedgrem.families.covariance import Full, Tied
from fedgrem.families.gaussian import Gaussian
from fedgrem.families.poisson import Poisson
from fedgrem.families.regression import LinearRegression
from fedgrem.fit.spec import FitSpec, StartPlan
from fedgrem.types import Params
from tests.engines.remote.studies import guard_of

SITES = ("east", "north", "south")
FEW = {"east": 40, "north": 4, "south": 40}
"""Rows of the second group, of 80."""


def rows_of(name):
    generator = np.random.default_rng(len(name) + ord(name[0]))
    group = np.arange(80) < FEW[name]
    rows = generator.poisson(4.0 + 26.0 * group[:, None], size=(80, 2)).astype(float)
    return rows, np.where(group, -3.0, 3.0) * rows[:, 0] + generator.normal(size=80)


class Floored:
    """Sites with a floor of ten, one of them with four rows of a component."""

    def __init__(self, folder, spec):
        self.guards = {}
        for name in SITES:
            rows, response = rows_of(name)
            path = folder / f"{name}.parquet"
            pl.DataFrame(rows, schema=["a", "b"]).with_columns(y=pl.Series(response)).write_parquet(path)
            settings = Settings(str(path), ("a", "b"), "y" if spec.family.has_target else None, floor=10.0)
            self.guards[name] = guard_of(settings, spec, folder / f"{name}.jsonl", name=name)

    def ask(self, site, task, exchange, order, timeout):
        try:
            return Answer(self.guards[site].answer(task, order, exchange=exchange), exchange)
        except DeclinedError as error:
            return Answer(None, exchange, error.code)


FAMILIES = [Gaussian(Tied()), Gaussian(Full()), LinearRegression("unit"), LinearRegression("component"), Poisson()]
START = StartPlan(n_init=2, short=5, long=10)


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
def test_a_site_with_few_rows_of_a_component_takes_part_in_the_fit(tmp_path, family):
    start = replace(START, joint_starts=2 if family.has_target else 0)
    spec = FitSpec(family, FedGrEM(), 2, max_rounds=3, start=start, score=True, seed=1)
    finished = fit_over_network(spec, list(SITES), Floored(tmp_path, spec), tmp_path / "run", Rules(2, 9.0, 0.0))
    assert finished.result.site_names == SITES
    assert finished.about["events"] == []
    assert np.isfinite(finished.result.theta).all()
    weights = finished.result.weights[SITES.index("north")]
    replies = [record for record in read_log(tmp_path / "north.jsonl") if record["kind"] == "reply"]
    told = [record["sent"]["params.weights"] for record in replies if record["task"] == "step"]
    held = [record["task"] for record in replies if "held_back" in record]
    # Regressions of one sign for few rows are no group of their own to every start; Gaussians and counts are.
    if not family.has_target:
        assert {"start", "compare", "step", "look", "information"} <= set(held)
        assert min(weights) < 0.01
    assert all(min(one) == 1e-6 or min(one) * 80 >= 9.9 for one in told)


@pytest.mark.parametrize("name", [name for name, kind in ALGORITHMS.items() if not kind.traits.pools_rows])
def test_algorithms_go_on_without_the_component_or_the_site_says_that_it_cannot(tmp_path, name):
    spec = FitSpec(Gaussian(), ALGORITHMS[name](), 2, penalty=0.0, max_rounds=2, start=START, seed=1)
    try:
        finished = fit_over_network(spec, list(SITES), Floored(tmp_path, spec), tmp_path / "run", Rules(2, 9.0, 0.0))
        assert np.isfinite(finished.result.theta).all()
    except PausedError as error:
        pytest.fail(str(error))
    refused = [record for record in read_log(tmp_path / "north.jsonl") if record["kind"] == "refusal"]
    assert {record["code"] for record in refused} <= {"floor"}
    assert bool(refused) == (name in ("fedgmm", "fedem-sa", "tgmm"))


def stack_of(rows):
    ordered = rows[np.lexsort(rows.T)][None]
    return Stack(["north"], ordered, None, np.ones(ordered.shape[:2]))


def test_as_many_rows_as_the_floor_are_left_out_the_same_every_time_and_the_weight_stays():
    stack = stack_of(np.random.default_rng(0).normal(size=(50, 2)))
    out = np.arange(50) < 3
    left = [_left(stack, out, 10.0) for _ in range(2)]
    gone = left[0].weight[0] < 1e3 * GONE
    assert gone.sum() == 10
    assert gone[:3].all()
    np.testing.assert_array_equal(left[0].weight, left[1].weight)
    assert left[0].weight.sum() == pytest.approx(50.0)
    assert _left(stack, np.zeros(50, dtype=bool), 10.0) is stack


def test_one_row_among_many_that_hardly_count_is_one_row():
    assert rows_alike(np.array([1.0] + [1e-5] * 1_000_000)) == pytest.approx(1.0, abs=1e-3)
    rows = np.concatenate([np.random.default_rng(0).normal(size=(99, 2)), [[30.0, 0.0]]])
    spec = FitSpec(Gaussian(), FedGrEM(), 2)
    held = rows_held(spec, stack_of(rows), Params(np.array([[0.5, 0.5]]), np.array([[[0.0, 0.0], [30.0, 0.0]]])))
    np.testing.assert_allclose(held[0], [99.0, 1.0], atol=1e-6)


def test_every_component_that_is_answered_holds_the_floor_at_what_is_answered():
    generator = np.random.default_rng(5)
    spec = FitSpec(Gaussian(), FedGrEM(), 6)
    for _ in range(10):
        stack = stack_of(generator.normal(size=(90, 2)) * 4.0)
        sent = Params(np.full((1, 6), 1 / 6), generator.normal(size=(1, 6, 2)) * 6.0)
        reply, held_back, _ = answer_above(spec, stack, "look", sent, 10.0)
        keep = np.array([r not in held_back for r in range(6)])
        found = Params(reply.params.weights[:, keep], reply.params.theta[:, keep])
        assert held_back
        # Of all rows, as many as were left out and more belong to these components.
        assert rows_held(spec, stack, found).min() >= 10.0
        np.testing.assert_array_equal(reply.params.theta[0, held_back], sent.theta[0, held_back])
