"""The in-process engine: to the bit the same, whatever the neighbours, threads and parts; absent sites are NaN."""

import threading

import numpy as np
import pytest

from fedgrem.algorithms.base import Pull
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.algorithms.pooled import PooledEM
from fedgrem.data import stack as stacks
from fedgrem.data.federation import Federation, Units
from fedgrem.data.units import UnitsPlan
from fedgrem.engines import inprocess
from fedgrem.engines.inprocess import ENOUGH, InProcess
from fedgrem.fit import penalty, starts
from fedgrem.fit.conversation import Agreed, Ask
from fedgrem.fit.fit import run
from fedgrem.fit.spec import StartPlan
from fedgrem.fit.tasks import StartRequest
from fedgrem.types import Params, named_arrays
from tests.conformance.engines import SiteBySite, assert_same_fit, fit, spec_for
from tests.conformance.families import BY_NAME, FAMILIES, GAUSSIAN

SIZES = (20, 120, 50, 9, 33)
AGREED = Agreed(None, False)
WHOLE = {"penalty": None, "fallback": True, "look": True, "standard_errors": True, "score": True}


@pytest.fixture(autouse=True, scope="module")
def _short_fits():
    """Joint starts of one generation, and paths of a few rounds: the same messages, fewer of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(starts, "GENERATIONS", 1)
        patch.setattr(starts, "GENERATION", 3)
        patch.setattr(penalty, "ROUNDS", 3)
        patch.setattr(penalty, "NOISE_ROUNDS", 2)
        yield


def start_request(n_sites):
    return Ask("start", StartRequest(np.zeros(n_sites, dtype=int), None), agreed=AGREED)


def engine_for(case, data, algorithm=None, **options):
    return InProcess(data, spec_for(case, FedGrEM() if algorithm is None else algorithm), **options)


def leaves(reply):
    return dict(named_arrays(reply.mail))


def watched_threads(monkeypatch):
    """The threads that run tasks."""
    seen, real = set(), inprocess.TASKS

    def watch(task):
        def run_it(*args):
            seen.add(threading.get_ident())
            return task(*args)

        return run_it

    monkeypatch.setattr(inprocess, "TASKS", {name: watch(task) for name, task in real.items()})
    return seen


@pytest.mark.parametrize("case", FAMILIES, ids=repr)
def test_what_a_site_answers_depends_on_its_own_rows_only_to_the_bit(case):
    data = case.federation(1, SIZES)
    together = leaves(engine_for(case, data).ask(start_request(5)))
    np.testing.assert_array_equal(together["n_rows"], SIZES)
    for k, site in enumerate(data.sites):
        alone = leaves(engine_for(case, Federation((site,), data.columns)).ask(start_request(1)))
        for name, leaf in alone.items():
            np.testing.assert_array_equal(together[name][k], leaf[0], err_msg=name)


@pytest.mark.parametrize("case", [GAUSSIAN, BY_NAME["gaussian-full"], BY_NAME["regression-shared"]], ids=repr)
def test_a_site_at_home_answers_as_in_a_stack_to_the_bit(case):
    data = case.federation(2, (40, 37, 52, 39))
    spec = spec_for(case, FedGrEM(), rounds=3, **WHOLE)
    assert_same_fit(run(spec, SiteBySite(data, spec)), run(spec, InProcess(data, spec)), rtol=0, atol=0)


def test_the_number_of_threads_changes_nothing_to_the_bit(monkeypatch):
    case, sizes = BY_NAME["gaussian-tied"], (2600, 1400, 2500, 700, 2590)
    assert sum(sizes) * 20 * 2 > ENOUGH  # restarts times components: threads are used
    data = case.federation(3, sizes)
    spec = spec_for(case, FedGrEM(), rounds=2, plan=StartPlan(n_init=20, short=2, long=3))
    one = run(spec, InProcess(data, spec, threads=1))
    seen = watched_threads(monkeypatch)
    assert_same_fit(run(spec, InProcess(data, spec, threads=2)), one, rtol=0, atol=0)
    assert len(seen) > 1


@pytest.mark.parametrize("case", [BY_NAME["gaussian-full"], BY_NAME["regression-component"]], ids=repr)
def test_the_number_of_threads_changes_nothing_in_any_phase(case, monkeypatch):
    data = case.federation(3, (60, 300, 58, 59, 40))
    spec = spec_for(case, FedGrEM(), rounds=2, **WHOLE)
    one = run(spec, InProcess(data, spec, threads=1))
    monkeypatch.setattr(inprocess, "ENOUGH", 1)
    seen = watched_threads(monkeypatch)
    assert_same_fit(run(spec, InProcess(data, spec, threads=3)), one, rtol=0, atol=0)
    assert len(seen) > 1


def test_small_fits_stay_in_one_thread(monkeypatch):
    seen = watched_threads(monkeypatch)
    fit(GAUSSIAN, GAUSSIAN.federation(4, SIZES), FedGrEM(), rounds=2)
    assert seen == {threading.get_ident()}


@pytest.mark.parametrize("case", [GAUSSIAN, BY_NAME["regression-shared"]], ids=repr)
def test_sites_a_few_at_a_time_answer_as_all_at_once(case, monkeypatch):
    data, start = case.federation(5, (40, 37, 39, 38, 33, 40)), case.near(5, 6)
    expected = fit(case, data, FedGrEM(), start, **WHOLE)
    cut = []
    chunks = stacks.Stack.chunks
    monkeypatch.setattr(stacks, "CACHE", 160)
    monkeypatch.setattr(stacks.Stack, "chunks", lambda *a: cut.append(list(chunks(*a))) or iter(cut[-1]))
    actual = fit(case, data, FedGrEM(), start, **WHOLE)
    assert max(map(len, cut)) > 2
    assert_same_fit(actual, expected, rtol=0, atol=0)  # sites of up to 256 rows are never cut themselves


def test_replies_come_in_site_order_whatever_the_stacks():
    data = GAUSSIAN.federation(6, SIZES)
    assert len(data.stacked()) == 5
    weights, theta = GAUSSIAN.near(6, 5)
    central = FedGrEM().broadcast(GAUSSIAN.family, _central(weights, theta))
    reply = engine_for(GAUSSIAN, data).ask(Ask("step", central, agreed=AGREED))
    assert reply.present.all()
    np.testing.assert_array_equal(reply.mail.n_rows, SIZES)


def _central(weights, theta):
    pull = Pull(np.asarray(1.0), np.asarray(1.0), np.ones(len(weights), dtype=bool))
    return FedGrEM().begin(GAUSSIAN.family, Params(weights, theta), np.array(SIZES, dtype=float), pull)


@pytest.mark.parametrize("away", [[0], [1, 3], [0, 1, 2, 3]])
def test_sites_that_are_not_asked_are_absent_and_nan_and_the_others_answer_the_same(away):
    data = GAUSSIAN.federation(7, SIZES)
    sent = FedGrEM().broadcast(GAUSSIAN.family, _central(*GAUSSIAN.near(7, 5)))
    asked = ~np.isin(np.arange(5), away)
    everyone, some = (engine_for(GAUSSIAN, data).ask(Ask("step", sent, agreed=AGREED, to=to)) for to in (None, asked))
    np.testing.assert_array_equal(some.present, asked)
    whole = leaves(everyone)
    for name, leaf in leaves(some).items():
        assert np.isnan(leaf[~asked]).all(), name
        np.testing.assert_array_equal(leaf[asked], whole[name][asked], err_msg=name)


def test_rows_are_put_into_other_units_when_others_are_agreed_on():
    data = GAUSSIAN.federation(8, SIZES)
    spec = spec_for(GAUSSIAN, FedGrEM(), units=UnitsPlan(standardize=True))
    engine = InProcess(data, spec)
    sizes = [
        np.abs(engine.ask(start_request(5)._replace(agreed=Agreed(Units(np.zeros(2), np.full(2, s)), False))).mail
               .params.theta).max()
        for s in (1.0, 100.0)
    ]  # fmt: skip
    assert sizes[0] > 30.0 * sizes[1]


def test_the_site_names_are_those_of_the_federation():
    assert engine_for(GAUSSIAN, GAUSSIAN.federation(1, (5, 6), names=["b", "a"])).site_names == ("b", "a")


def test_a_single_site_is_a_federation_too():
    result = fit(GAUSSIAN, GAUSSIAN.federation(9, (40,)), FedGrEM(), rounds=30, **WHOLE)
    assert np.isfinite(result.theta).all()
    np.testing.assert_array_equal(result.theta[0], result.center)
    assert result.look is None
    assert result.path == {}


def test_pooled_rows_are_one_site_that_answers_for_everyone():
    data = GAUSSIAN.federation(10, SIZES, names=list("badce"))
    reply = engine_for(GAUSSIAN, data, PooledEM()).ask(start_request(5))
    np.testing.assert_array_equal(reply.mail.n_rows, SIZES)
    merged = Federation((data.merged().sites[0],), data.columns)
    alone = engine_for(GAUSSIAN, merged).ask(start_request(1))
    np.testing.assert_array_equal(reply.mail.params.theta, np.repeat(alone.mail.params.theta, 5, axis=0))


def test_no_task_writes_to_what_it_was_sent():
    data = BY_NAME["gaussian-full"].federation(11, SIZES)
    case = BY_NAME["gaussian-full"]
    spec = spec_for(case, FedGrEM(), rounds=3, **WHOLE)

    class ReadOnly(InProcess):
        def ask(self, ask):
            for _, leaf in named_arrays(ask.mail):
                leaf.flags.writeable = False
            reply = super().ask(ask)
            for _, leaf in named_arrays(reply.mail):
                leaf.flags.writeable = False
            return reply

    assert_same_fit(run(spec, ReadOnly(data, spec)), run(spec, InProcess(data, spec)), rtol=0, atol=0)
