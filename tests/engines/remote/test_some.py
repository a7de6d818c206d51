"""Components that only some sites have, over a wire: the in-process fit, and a guard that lets no more be born."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.data.federation import Federation
from fedgrem.engines.inprocess import InProcess
from fedgrem.engines.remote.course import Course, Stage
from fedgrem.engines.remote.declaration import STEP, Order
from fedgrem.engines.remote.log import read_log
from fedgrem.engines.remote.roster import Rules
from fedgrem.engines.remote.run import fit_over_network
from fedgrem.engines.remote.site import DeclinedError, Settings
from fedgrem.engines.remote.wire import encode
from fedgrem.families.covariance import Full
from fedgrem.families.gaussian import Gaussian
from fedgrem.fit.births import Bases, Prices
from fedgrem.fit.fit import run
from fedgrem.fit.some import PASSES
from fedgrem.fit.spec import FitSpec
from fedgrem.types import Params
from tests.conformance.engines import assert_same_fit
from tests.engines.remote.coordinator import Coordinator
from tests.engines.remote.studies import AtHand, guard_of
from tests.engines.remote.test_journal import CrashError, crash_at
from tests.fit.test_some import HAS, NAMES, by_middle, drawn

COLUMNS = ("x0", "x1")


def spec_of(family=None, **options):
    values = {"penalty": 1.0, "fallback": False, "seed": 1, "some": 8, "max_rounds": 60, "score": True}
    return FitSpec(family or Gaussian(), FedGrEM(), 2, **values | options)


class Sites(AtHand):
    """The sites of the made-up federation, behind their guards."""

    def __init__(self, folder, spec, spoil=None, rows=None, floor=1.0):
        super().__init__(folder, spec, (), spoil)
        for name, own in (drawn() if rows is None else rows).items():
            path = folder / f"{name}.parquet"
            pl.DataFrame(own, schema=list(COLUMNS)).write_parquet(path)
            settings = Settings(str(path), COLUMNS, floor=floor)
            self.guards[name] = guard_of(settings, spec, folder / f"{name}.jsonl", name=name)


def over_network(folder, spec, spoil=None, **more):
    folder.mkdir(exist_ok=True)
    return fit_over_network(spec, list(NAMES), Sites(folder, spec, spoil, **more), folder, Rules(deadline=20.0)).result


def in_process(spec):
    rows = drawn()
    return run(spec, InProcess(Federation.from_sites(list(rows), list(rows.values())), spec))


SPECS = {
    "penalty": spec_of(),
    "estimated": spec_of(penalty=None, max_rounds=20),
    "full": spec_of(Gaussian(Full()), penalty=None, max_rounds=20),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_the_fit_over_the_wire_is_the_one_in_process_to_the_bit(tmp_path, spec):
    over, here = over_network(tmp_path, spec), in_process(spec)
    np.testing.assert_array_equal(over.held, here.held)
    assert_same_fit(over, here, rtol=0, atol=0)
    assert over.theta.shape[1] > spec.n_components


def test_a_fit_that_died_while_components_were_sought_goes_on_to_the_same_end(tmp_path):
    spec = spec_of()
    whole = over_network(tmp_path / "whole", spec)
    asked = [record for record in read_log(tmp_path / "whole" / "site-0.jsonl") if record["kind"] == "order"]
    for task in ("birth", "hold"):
        number = next(record["exchange"] for record in asked if record["task"] == task)
        folder = tmp_path / task
        with pytest.raises(CrashError):
            over_network(folder, spec, crash_at(number))
        assert_same_fit(over_network(folder, spec), whole, rtol=0, atol=0)


def test_a_site_that_is_silent_while_components_are_sought_keeps_what_it_has(tmp_path):
    def spoil(site, task, exchange, answer):
        silent = site == "site-5" and task in ("birth", "hold")
        return answer._replace(fields=None, trouble="asleep") if silent else answer

    folder = tmp_path
    spec = spec_of()
    found = fit_over_network(spec, list(NAMES), Sites(folder, spec, spoil), folder, Rules(deadline=0.5)).result
    order = by_middle(found)
    np.testing.assert_array_equal(found.held[:, order], HAS)


def test_with_a_floor_nobody_tells_of_a_component_of_fewer_rows_and_the_others_are_found(tmp_path):
    rows = drawn()
    few = np.random.default_rng(5).normal(20.0, size=(6, 2))
    rows["site-2"] = np.concatenate([rows["site-2"], few])  # six rows far from everything: a birth, but for the floor
    spec = spec_of()
    (tmp_path / "all").mkdir()
    found = over_network(tmp_path, spec, rows=rows, floor=10.0)
    np.testing.assert_array_equal(found.held[:, by_middle(found)], HAS)
    born = over_network(tmp_path / "all", spec, rows=rows)
    assert (np.linalg.norm(born.center - 20.0, axis=1) < 2.0).any()
    for record in read_log(tmp_path / "site-2.jsonl"):
        if record["kind"] == "reply" and record["task"] in ("birth", "hold"):
            weights = np.array(record["sent"].get("params.weights", record["sent"].get("weights")))
            assert not ((weights > 0.011) & (weights * 126 < 9.5)).any()


# -- the guard


def params_of(n_components):
    theta = np.column_stack([np.linspace(-6.0, 6.0, n_components), np.zeros(n_components)])
    return Params(np.full(n_components, 1.0 / n_components), theta)


@pytest.fixture
def center(tmp_path):
    """A coordinator at the first round of a fit with components of some sites."""
    spec, path = spec_of(penalty=2.0, max_rounds=3), tmp_path / "site.parquet"
    pl.DataFrame(drawn()["site-1"], schema=list(COLUMNS)).write_parquet(path)
    settings = Settings(str(path), COLUMNS, floor=1.0)
    asks = Coordinator(guard_of(settings, spec, tmp_path / "log.jsonl"), spec, settings)
    for task in ("census", "start", "compare", STEP):
        asks.ask(task)
    return asks


def send(center, task, mail):
    center.exchange += 1
    return center.guard.answer(task, encode(Order(mail, None, np.asarray(False))), exchange=center.exchange)


def birth(center, n_components, lift=0.0):
    one = params_of(n_components)
    both = Params(*(None if leaf is None else np.stack([leaf, leaf + lift * (leaf.ndim > 1)]) for leaf in one))
    return send(center, "birth", Bases(both, np.zeros(2), np.zeros((2, n_components))))


def hold(center, n_components, price=0.0):
    return send(center, "hold", Prices(params_of(n_components), np.full(n_components, price)))


def step(center, n_components):
    form = center.declaration.forms(STEP, n_components=n_components)[0].order.mail
    toward = form.extra._replace(center=params_of(n_components).theta, steps=np.asarray(1))
    return send(center, STEP, form._replace(params=params_of(n_components), extra=toward))


def refused(match, ask, *arguments):
    with pytest.raises(DeclinedError, match=match):
        ask(*arguments)


def test_the_course_comes_again_as_often_as_there_are_passes(center):
    course = Course(replace(center.guard._site.spec, max_rounds=3), 2)
    once = [Stage("birth", 1), Stage("hold", 1), Stage("hold", 1), Stage(STEP, 3), Stage("score", 1)]
    places = [k for k, stage in enumerate(course.stages) if stage.task == "birth"]
    assert course.stages[places[0] : places[0] + PASSES * len(once)] == once * PASSES
    assert [stage.task for stage in course.stages[-2:]] == ["look", "information"]


def test_one_birth_too_many_is_refused(center):
    for number in range(PASSES):
        birth(center, 2, 0.1 * number)
        hold(center, 2, 0.1 * number)
    refused("'birth' was asked|not the turn of 'birth'", birth, center, 2, 9.0)


def test_more_components_than_were_agreed_on_are_refused(center):
    birth(center, 2)
    refused("about 9 components, and this fit has at most 8", hold, center, 9)
    hold(center, 8)


def test_components_are_others_only_where_sites_are_offered_some(center):
    refused("'birth' is asked about 3 components, and this fit is about 2", birth, center, 3)
    birth(center, 2)
    hold(center, 4)
    step(center, 3)
    refused("'step' is asked about 4 components, and this fit is about 3", step, center, 4)
    send(center, "score", params_of(3))
    refused("'birth' is asked about 2 components, and this fit is about 3", birth, center, 2, 0.5)
    birth(center, 3)


def test_before_births_a_fit_is_about_what_was_agreed(center, tmp_path):
    refused("'step' is asked about 3 components, and this fit is about 2", step, center, 3)
    plain = Coordinator(center.guard, replace(center.guard._site.spec, some=0), center.settings)
    with pytest.raises(Exception, match="no task 'birth'"):
        plain.declaration.forms("birth")


def test_what_was_begun_goes_on_after_a_restart_of_the_guard(center, tmp_path):
    birth(center, 2)
    hold(center, 2)
    hold(center, 4)
    site = center.guard._site
    center.guard = guard_of(site.settings, site.spec, tmp_path / "log.jsonl")
    refused("'step' is asked about 5 components, and this fit is about 4", step, center, 5)
    step(center, 4)
    states = [record["state"] for record in read_log(tmp_path / "log.jsonl") if "state" in record]
    assert states[-1][-1] == 4
