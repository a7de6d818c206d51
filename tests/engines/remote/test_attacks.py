"""What a coordinator that sends its own orders learns of single rows: nothing, or no more than chance."""

import numpy as np
import polars as pl
import pytest

from fedgrem.data.units import UnitsPlan
from fedgrem.engines.remote.account import pages
from fedgrem.engines.remote.declaration import STEP, Units
from fedgrem.engines.remote.log import check_log, read_log
from fedgrem.engines.remote.run import fit_over_network
from fedgrem.engines.remote.site import DeclinedError, Settings
from fedgrem.fit.spec import StartPlan
from fedgrem.types import Params
from tests.engines.remote.coordinator import Coordinator
from tests.engines.remote.studies import NAMES, AtHand, guard_of, spec_of

N_ROWS = 303
COLUMNS = ("age", "pressure")


def patients(seed=0, n_rows=N_ROWS):
    """Ages and pressures, one of the patients far older than the others."""
    generator = np.random.default_rng(seed)
    rows = generator.normal([54.0, 130.0], [9.0, 17.0], size=(n_rows, 2))
    rows[17, 0] = 97.25
    return rows


@pytest.fixture
def hospital(tmp_path):
    """A site with a default floor, and a coordinator that sends what it likes."""

    def make(spec, rows=None, name="hospital", run="run-1", **settings):
        path = tmp_path / f"{name}.parquet"
        pl.DataFrame(patients() if rows is None else rows, schema=list(COLUMNS)).write_parquet(path)
        site = Settings(str(path), COLUMNS, **settings)
        log = tmp_path / f"{name}.jsonl"
        coordinator = Coordinator(guard_of(site, spec, log, name="hospital", run=run), spec, site)
        coordinator.log = log
        return coordinator

    return make


def begun(coordinator, **options):
    """The conversation as far as the first round."""
    for task in ("census", "start", "compare"):
        coordinator.ask(task, **options)
    return coordinator


def refused(coordinator, count):
    """The refusals in the site's log, which is whole."""
    assert check_log(coordinator.log).broken == ""
    found = [record for record in read_log(coordinator.log) if record["kind"] == "refusal"]
    assert len(found) == count
    return found


def told(coordinator):
    """Every number that left."""
    values = [np.ravel(v) for record in read_log(coordinator.log) if "sent" in record for v in record["sent"].values()]
    return np.concatenate([v for v in values if v.dtype.kind == "f"])


def recovered(numbers, rows):
    """How many rows have every cell among the numbers that left."""
    near = np.abs(rows[:, :, None] - numbers).min(axis=-1) < 1e-6
    return int(near.all(axis=1).sum())


@pytest.mark.parametrize("n_components", [N_ROWS, N_ROWS // 2, 31])
def test_a_start_with_a_component_for_every_row_is_refused(hospital, n_components):
    spec = spec_of(penalty=2.0)
    spec = type(spec)(spec.family, spec.algorithm, n_components, penalty=2.0)
    coordinator = hospital(spec)
    for task in ("census", "start"):
        with pytest.raises(DeclinedError, match=r"enough for 30 component\(s\), and the fit has"):
            coordinator.ask(task)
    assert [record["code"] for record in refused(coordinator, 2)] == ["floor", "floor"]
    assert not [record for record in read_log(coordinator.log) if "sent" in record]


@pytest.mark.parametrize("n_components", [30, 12])
def test_a_start_with_as_many_components_as_the_site_allows_returns_no_row(hospital, n_components):
    spec = spec_of(penalty=2.0)
    spec = type(spec)(spec.family, spec.algorithm, n_components, penalty=2.0)
    coordinator = hospital(spec)
    coordinator.ask("census")
    coordinator.ask("start")
    assert recovered(told(coordinator), patients()) == 0
    assert np.abs(told(coordinator) - patients().max()).min() > 1e-3


def test_log_likelihoods_in_units_of_the_coordinators_own_are_refused_one_and_all(hospital):
    # What found the oldest patient: units centered on a guess, and tiny, so that one row outweighs all others.
    spec = spec_of(score=True, penalty=2.0, fallback=False, units=UnitsPlan(standardize=True))
    agreed = Units(np.array([54.0, 130.0]), np.array([9.0, 17.0]))
    coordinator = begun(hospital(spec), units=agreed)
    coordinator.ask(STEP, units=agreed)
    for number in range(38):
        units = Units(np.array([97.0 + 2.0**-number, 130.0]), np.array([10.0 ** -(number % 8), 17.0]))
        with pytest.raises(DeclinedError):
            coordinator.ask("score", units=units, new=True)
    whys = {record["why"] for record in refused(coordinator, 20)}
    assert whys == {"the order has other units than those before it; they may not change in a fit."}


def test_a_component_of_one_row_tells_nothing_of_it_in_any_task(hospital):
    spec = spec_of(score=True, penalty=2.0, fallback=False)
    coordinator = begun(hospital(spec))
    rows = patients()
    probe = Params(np.array([0.99, 0.01]), np.array([[54.0, 130.0], rows[17]]))
    for task in (STEP, "score", "look", "information"):
        coordinator.ask(task, params=probe)
    about_probe = [
        r["sent"]["params.theta"][1] for r in read_log(coordinator.log) if r.get("task") == STEP and "sent" in r
    ]
    assert about_probe == [rows[17].tolist()], "what was sent, and no row"
    # The same orders with the oldest patient replaced by an ordinary one: the component is answered alike.
    other = rows.copy()
    other[17] = rows[18]
    twin = begun(hospital(spec, other, name="twin"))
    for task in (STEP, "score", "look", "information"):
        twin.ask(task, params=probe)
    held = [[r["held_back"] for r in read_log(one.log) if "held_back" in r][-4:] for one in (coordinator, twin)]
    assert held[0] == held[1] == [[1], [1], [1], [1]]


def test_what_is_left_out_cannot_be_found_by_subtraction(hospital):
    # Were the other component's mean that of 302 rows, the census and it would give the last row.
    spec = spec_of(penalty=2.0, fallback=False)
    coordinator = hospital(spec)
    census = coordinator.ask("census")
    for task in ("start", "compare"):
        coordinator.ask(task)
    rows = patients()
    probe = Params(np.array([0.5, 0.5]), np.array([[54.0, 130.0], rows[17]]))
    large = coordinator.ask(STEP, params=probe).params.theta[0]
    mean = probe.theta[0] + (large - probe.theta[0]) / 0.95  # undo the step size: the mean of what it holds
    guess = N_ROWS * census.mean - (N_ROWS - 1) * mean
    assert np.abs(guess - rows[17]).max() > 20.0


PERSON = np.array([71.3, 168.9])
ASIDE = PERSON - 3.0 * (PERSON - [54.0, 130.0]) / np.linalg.norm(PERSON - [54.0, 130.0])
"""Half-way from there to the person's own record, hardly anybody else is as far out."""


def area(there, gone):
    """Under the curve of a guess by one number, whichever of its ends speaks for membership; 0.5 is chance."""
    wins = (there[:, None] > gone).mean() + 0.5 * (there[:, None] == gone).mean()
    return max(wins, 1.0 - wins)


def told_of_person(hospital, floor, sets=100):
    """What leaves of tables with a person and without: numbers by which to guess, ``(2, sets, m)``."""
    spec = spec_of(penalty=2.0, fallback=False, score=True)
    probe = Params(np.array([0.5, 0.5]), np.array([ASIDE, PERSON]))
    found = []
    for there in (True, False):
        for seed in range(sets):
            rows = np.random.default_rng([seed, there]).normal([54.0, 130.0], [9.0, 17.0], size=(60, 2))
            if there:
                rows[5] = PERSON
            coordinator = begun(hospital(spec, rows, name=f"{floor}-{there}-{seed}", floor=floor))
            step, score = coordinator.ask(STEP, params=probe), coordinator.ask("score", params=probe)
            away = np.linalg.norm(step.params.theta - probe.theta, axis=1)
            numbers = (*away, step.params.weights[1], score.log_likelihood, score.entropy)
            found.append(np.append(numbers, step.params.theta.ravel()))
    return np.array(found).reshape(2, sets, -1)


def test_membership_cannot_be_told_better_than_by_chance_and_without_a_floor_it_can(hospital):
    # A component on the person's own record, in a fit of which the person is one row or is not; nothing else is known.
    with_floor, without = (
        max(area(*pair) for pair in told_of_person(hospital, floor).transpose(2, 0, 1)) for floor in (10.0, 0.0)
    )
    assert without > 0.85, "what the same guess is worth where one row is answered for"
    assert with_floor < 0.5 + 3.0 * np.sqrt(201.0 / (12.0 * 100.0 * 100.0)), "three standard errors of chance"


def found_by_steering(coordinator, n_rows, rounds):
    """Rows found by a cut through the rows that is moved every round: two answers differ by the rows in between."""
    hard, asked, found = 1e5, 0, []

    def beyond(cut):
        nonlocal asked
        asked += 1
        sent = np.array([[cut - hard, 130.0], [cut + hard, 130.0]])
        step = coordinator.ask(STEP, params=Params(np.array([0.5, 0.5]), sent))
        held = n_rows * step.params.weights[1]
        return held, held * (sent[1] + (step.params.theta[1] - sent[1]) / 0.95)

    todo = [(40.0, 68.0, beyond(40.0), beyond(68.0))]
    while todo and asked < rounds:
        low, high, more, fewer = todo.pop()
        count = more[0] - fewer[0]
        if abs(count - 1.0) < 1e-6:
            found.append(more[1] - fewer[1])
        elif count > 1.0 and high - low > 1e-3:
            middle = beyond(0.5 * (low + high))
            todo += [(low, 0.5 * (low + high), more, middle), (0.5 * (low + high), high, middle, fewer)]
    return np.array(found)


def test_a_coordinator_that_moves_a_cut_through_the_rows_finds_none_by_subtraction_and_without_a_floor_many(hospital):
    rounds, exact = 60, {}
    for floor in (10.0, 0.0):
        spec = spec_of(penalty=2.0, fallback=False, max_rounds=rounds)
        coordinator = begun(hospital(spec, name=f"{floor}", floor=floor))
        found = found_by_steering(coordinator, N_ROWS, rounds)
        exact[floor] = sum(np.abs(patients() - row).max(axis=1).min() < 1e-2 for row in found)
        (page,) = pages(read_log(coordinator.log))
        assert page.far == (2 if floor else 0), "all that it sent, for there was nothing to go on with"
    assert exact[0.0] > 10
    assert exact[10.0] == 0


@pytest.mark.parametrize(
    ("before", "task", "spec"),
    [
        (("census", "start", "compare"), STEP, spec_of(penalty=2.0, fallback=False)),
        (("census", "start", "compare"), "path_step", spec_of()),
        (("census", "start"), "joint_start", spec_of(start=StartPlan(joint_starts=2))),
    ],
    ids=[STEP, "path_step", "joint_start"],
)
def test_of_parameters_far_from_its_rows_a_site_answers_what_it_was_sent(hospital, before, task, spec):
    coordinator = hospital(spec)
    for earlier in before:
        coordinator.ask(earlier)
    cut = Params(np.array([0.3, 0.7]), np.array([[54.0 - 1e5, 130.0], [54.0 + 1e5, 130.0]]))
    for one in (coordinator, hospital(spec)):  # and a worker that begins with this log
        reply = one.ask(task, params=cut)
        part = getattr(reply, "fits", reply)
        np.testing.assert_array_equal(part.params.theta, np.broadcast_to(cut.theta, part.params.theta.shape))
        np.testing.assert_array_equal(part.params.weights, np.broadcast_to(cut.weights, part.params.weights.shape))
        n_rows = np.reshape(part.n_rows, (*part.n_rows.shape, *(1,) * (part.log_likelihood.ndim - part.n_rows.ndim)))
        assert np.ptp(part.log_likelihood / n_rows) < 1e-9, "a number that hangs on earlier answers only"
    (page,) = pages(read_log(coordinator.log))
    assert page.far == 2


def test_in_an_honest_fit_nothing_is_far(tmp_path):
    spec = spec_of(max_rounds=6, tol=0.0)
    fit_over_network(spec, list(NAMES), AtHand(tmp_path, spec, floor=5.0), tmp_path / "run")
    for name in NAMES:
        (page,) = pages(read_log(tmp_path / f"{name}.jsonl"))
        assert page.far == 0
        assert sum(line.answered for line in page.lines) > 12


def test_two_fits_that_differ_in_a_row_are_not_both_answered(hospital):
    spec = spec_of(penalty=2.0, fallback=False)
    hospital(spec).ask("census")
    without = np.delete(patients(), 17, axis=0)
    later = hospital(spec, without, run="run-2")
    with pytest.raises(DeclinedError, match="the rows have changed since run-1, by 1 in number"):
        later.ask("census")
    swapped = patients()
    swapped[17] = swapped[18]
    with pytest.raises(DeclinedError, match="the rows have changed since run-1, by 0 in number"):
        hospital(spec, swapped, run="run-3").ask("census")
    assert [record["code"] for record in refused(later, 2)] == ["changed", "changed"]


def test_fits_that_differ_by_a_row_because_of_the_spec_are_counted(hospital):
    for number in range(5):
        hospital(spec_of(seed=number), run=f"run-{number}", fits_per_day=5).ask("census")
    last = hospital(spec_of(seed=9), run="run-9", fits_per_day=5)
    with pytest.raises(DeclinedError, match="5 fits were begun within a day"):
        last.ask("census")
    refused(last, 1)
