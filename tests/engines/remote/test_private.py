"""A private fit over a wire: the same fit, budgets that are kept, and orders that are answered once."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fedgrem.engines.inprocess import InProcess
from fedgrem.engines.remote import declaration
from fedgrem.engines.remote.account import pages
from fedgrem.engines.remote.declaration import CENSUS, HELLO, Declaration
from fedgrem.engines.remote.guard import Guard
from fedgrem.engines.remote.ledger import charge, spent
from fedgrem.engines.remote.log import Log, read_log
from fedgrem.engines.remote.rehearsal import rehearse
from fedgrem.engines.remote.roster import Rules
from fedgrem.engines.remote.run import fit_over_network, replay
from fedgrem.engines.remote.site import DeclinedError, SiteAtWork, read_rows
from fedgrem.engines.remote.wire import encode
from fedgrem.errors import InputError, PausedError
from fedgrem.families.covariance import Tied
from fedgrem.families.gaussian import Gaussian
from fedgrem.fit.fit import run
from fedgrem.fit.private_site import TASKS
from fedgrem.fit.spec import FitSpec
from fedgrem.kernels.privacy import epsilon_of, mu_of
from fedgrem.types import map_arrays
from tests.engines.remote.coordinator import NONCE, Coordinator
from tests.engines.remote.studies import NAMES, AtHand, spec_of, write_site

SPEC = spec_of(ranges=((-8.0, 8.0),) * 2, columns=("x0", "x1"))
TWO = Rules(min_sites=2)
ORDER = [task for task, work in TASKS.items() for _ in range(work.times)]


class Private(AtHand):
    """Sites with a budget and a ledger each."""

    def __init__(self, folder, spec=SPEC, *, draw=None, spoil=None, run="run-1", **settings):
        super().__init__(folder, spec, spoil=spoil, run=run, **settings)
        for name in NAMES:
            self.guards[name] = guard_of(folder, name, spec, draw=draw, run=run, **settings)


def guard_of(folder, name="north", spec=SPEC, *, draw=None, run="run-1", epsilon=4.0, **settings):
    """A private site's guard, as a worker that has just begun makes it."""
    mine = write_site(folder, name, epsilon=epsilon, ledger=str(folder / f"{name}-budget.jsonl"), **settings)
    site = SiteAtWork(name, mine, spec, **({} if draw is None else {"draw": draw}))
    log = folder / f"{name}.jsonl"
    return Guard(site, Log(log), lambda: read_log(log), run=run)


def center_of(folder, spec=SPEC, **options):
    guard = guard_of(folder, spec=spec, **options)
    return Coordinator(guard, spec, guard._site.settings)


# -- the same fit


@pytest.mark.parametrize("covariance", [None, Tied()], ids=["identity", "tied"])
def test_a_fit_over_a_wire_is_that_in_process_to_the_bit(tmp_path, covariance):
    spec = SPEC if covariance is None else replace(SPEC, family=Gaussian(covariance))
    wire = Private(tmp_path, spec, draw=np.zeros)
    found = fit_over_network(spec, list(NAMES), wire, tmp_path, TWO).result
    sites = [read_rows(name, wire.guards[name]._site.settings).sites[0] for name in NAMES]
    data = replace(read_rows("north", wire.guards["north"]._site.settings), sites=tuple(sites))
    budgets = dict.fromkeys(NAMES, mu_of(4.0, 1e-6))
    expected = run(spec, InProcess(data, spec, budgets=budgets, draw=np.zeros))
    for name in ("theta", "weights", "center", "n_rows", "distance"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
    assert [task for site, task, _ in wire.asked if site == "north"] == ORDER
    assert replay(tmp_path / "journal").as_kept


def test_with_noise_two_fits_differ(tmp_path):
    found = []
    for run_name in ("run-1", "run-2"):
        folder = tmp_path / run_name
        folder.mkdir()
        found.append(fit_over_network(SPEC, list(NAMES), Private(folder, run=run_name), folder, TWO).result)
    assert not np.array_equal(found[0].theta, found[1].theta)


def test_a_site_that_is_lost_is_not_asked_again(tmp_path):
    def spoil(site, task, exchange, answer):
        return answer._replace(fields=None, declined="rows") if (site, exchange) == ("east", 4) else answer

    wire = Private(tmp_path, spoil=spoil, draw=np.zeros)
    finished = fit_over_network(SPEC, list(NAMES), wire, tmp_path, TWO)
    assert "its rows cannot be used" in finished.about["out"]["east"]
    assert sum(site == "east" for site, *_ in wire.asked) == 4
    np.testing.assert_array_equal(finished.result.theta[0], finished.result.center)


def test_a_fit_that_pauses_goes_on_with_the_answers_that_were_paid_for(tmp_path):
    lost = {"east", "south"}

    def spoil(site, task, exchange, answer):
        return answer._replace(fields=None, declined="rows") if exchange == 6 and site in lost else answer

    with pytest.raises(PausedError, match="1 of 3 site"):
        fit_over_network(SPEC, list(NAMES), Private(tmp_path, spoil=spoil), tmp_path, TWO)
    lost.clear()
    told = [record["sent"]["noisy"] for record in read_log(tmp_path / "north.jsonl") if record["kind"] == "reply"]
    fit_over_network(SPEC, list(NAMES), Private(tmp_path), tmp_path, TWO)
    again = [record["sent"]["noisy"] for record in read_log(tmp_path / "north.jsonl") if record["kind"] == "reply"]
    assert again[: len(told)] == told
    assert len(again) == len(ORDER), "the sixth order came twice, and was answered once"
    assert all(spent(tmp_path / f"{name}-budget.jsonl", 1e-6).fits == 1 for name in NAMES)


# -- no answer twice


def test_an_order_that_is_repeated_has_the_same_answer_even_from_a_new_worker(tmp_path):
    for _ in range(2):  # the second worker begins with the log of the first
        asked = center_of(tmp_path)
        first = asked.ask("private_columns")
        np.testing.assert_array_equal(asked.ask("private_columns").noisy, first.noisy)
    records = [record for record in read_log(tmp_path / "north.jsonl") if record["kind"] == "reply"]
    assert len(records) == 1
    np.testing.assert_array_equal(records[0]["sent"]["noisy"], first.noisy)


def test_two_workers_of_one_fit_do_not_answer_one_order_each(tmp_path):
    one, other = center_of(tmp_path), center_of(tmp_path)
    first = one.ask("private_columns")
    np.testing.assert_array_equal(other.ask("private_columns").noisy, first.noisy)
    one.ask("private_moments")
    with pytest.raises(DeclinedError, match="all that this fit needs"):
        _fresh(other, "private_moments")
    for asked in (one, other):
        _fresh(asked, "private_cells")
    with pytest.raises(DeclinedError, match="all that this fit needs"):
        _fresh(one, "private_cells")
    assert spent(tmp_path / "north-budget.jsonl", 1e-6).fits == 1


@pytest.mark.parametrize("task", ["private_moments", "private_cells", "private_step"])
def test_another_order_where_all_are_answered_is_refused(tmp_path, task):
    asked = center_of(tmp_path)
    for one in ORDER[: ORDER.index(task)]:
        asked.ask(one) if one != "private_cells" else _fresh(asked, one)
    for _ in range(TASKS[task].times):
        _fresh(asked, task)
    with pytest.raises(DeclinedError, match="which is all that this fit needs"):
        _fresh(asked, task)
    replies = [record for record in read_log(tmp_path / "north.jsonl") if record["kind"] == "reply"]
    assert sum(record["task"] == task for record in replies) == TASKS[task].times


def _fresh(asked, task):
    """An order that differs from all before it."""
    order = asked.order(task)
    asked.exchange += 1
    number = float(next(NONCE))
    if task == "private_step":
        order = order._replace(mail=order.mail._replace(white=np.eye(2) * number))
    else:
        order = order._replace(mail=map_arrays(lambda leaf: leaf + number, order.mail))
    return asked.guard.answer(task, encode(order), exchange=asked.exchange)


def test_noise_is_as_large_as_was_paid_for_though_the_settings_change_in_between(tmp_path):
    said = float(center_of(tmp_path).ask("private_columns").added)
    later = center_of(tmp_path, epsilon=1000.0)
    later.ask("private_columns")
    share = TASKS["private_columns"].share
    assert said == pytest.approx(1.0 / (mu_of(4.0, 1e-6) * np.sqrt(share)), rel=1e-3)
    moments = TASKS["private_moments"].share
    assert float(later.ask("private_moments").added) == pytest.approx(said * np.sqrt(share / moments))


# -- budgets


def test_fits_are_answered_until_the_total_is_spent(tmp_path):
    total = epsilon_of(np.sqrt(2.0) * mu_of(4.0, 1e-6), 1e-6)
    for number in (1, 2):
        center_of(tmp_path, run=f"run-{number}", total_epsilon=total).ask("private_columns")
    with pytest.raises(DeclinedError, match=r"2 fit\(s\) have spent epsilon .*--total-epsilon N") as refused:
        center_of(tmp_path, run="run-3", total_epsilon=total).ask("private_columns")
    assert refused.value.code == "budget"
    assert spent(tmp_path / "north-budget.jsonl", 1e-6) == (2, pytest.approx(total))


def test_a_crash_between_the_ledger_and_the_log_costs_no_budget(tmp_path, monkeypatch):
    class CrashError(BaseException):
        pass

    def crash(self, kind, **content):
        if kind == "fit":
            raise CrashError
        usual(self, kind, **content)

    usual = Log.append
    with monkeypatch.context() as patch:
        patch.setattr(Log, "append", crash)
        with pytest.raises(CrashError):
            center_of(tmp_path).ask("private_columns")
    assert spent(tmp_path / "north-budget.jsonl", 1e-6).fits == 1
    center_of(tmp_path).ask("private_columns")
    assert spent(tmp_path / "north-budget.jsonl", 1e-6).fits == 1
    (tmp_path / "north.jsonl").unlink()
    with pytest.raises(DeclinedError, match="its answers are in another log"):
        center_of(tmp_path).ask("private_columns")


def test_without_a_total_one_fit_is_answered(tmp_path):
    center_of(tmp_path).ask("private_columns")
    with pytest.raises(DeclinedError, match="spent epsilon 4 of 4"):
        center_of(tmp_path, run="run-2").ask("private_columns")


def test_a_ledger_is_for_the_sites_own_eyes_and_one_that_is_damaged_is_an_end(tmp_path):
    path = tmp_path / "budget.jsonl"
    charge(path, "run-1", 1.0, 1e-6, 9.0)
    assert path.stat().st_mode & 0o077 == 0
    with pytest.raises(InputError, match="run-1 has been paid for before"):
        charge(path, "run-1", 1.0, 1e-6, 9.0)
    path.write_text('{"run": "run-1"}\n')
    with pytest.raises(InputError, match="cannot be read"):
        charge(path, "run-2", 1.0, 1e-6, 9.0)


def test_budgets_of_different_fits_add_up_as_one_gaussian_mechanism(tmp_path):
    path, parts = tmp_path / "budget.jsonl", (0.5, 2.0, 1.0)
    for number, epsilon in enumerate(parts):
        charge(path, f"run-{number}", epsilon, 1e-6, 9.0)
    whole = np.sqrt(sum(mu_of(epsilon, 1e-6) ** 2 for epsilon in parts))
    assert spent(path, 1e-6).epsilon == pytest.approx(epsilon_of(whole, 1e-6))
    assert spent(path, 1e-6).epsilon < sum(parts)


def test_a_site_with_a_budget_answers_private_fits_only_and_one_without_does_not(tmp_path):
    plain = spec_of(columns=("x0", "x1"))
    with pytest.raises(DeclinedError, match="has a privacy budget, and the fit is not private"):
        center_of(tmp_path, spec=plain).ask("census")
    with pytest.raises(DeclinedError, match=r"the site has no budget; .* --epsilon 4") as refused:
        center_of(tmp_path, run="run-2", epsilon=None).ask("private_columns")
    assert refused.value.code == "budget"


def test_a_private_fit_has_no_census_and_needs_columns_that_are_agreed_on(tmp_path):
    asked = center_of(tmp_path)
    with pytest.raises(DeclinedError, match="there is no task 'census' in this fit"):
        asked.guard.answer(CENSUS, encode(HELLO), exchange=1)
    nameless = replace(SPEC, columns=None)
    with pytest.raises(DeclinedError, match="say nothing of their columns"):
        guard_of(tmp_path, spec=nameless).answer("private_columns", encode(HELLO), exchange=1)


@pytest.mark.parametrize(
    ("settings", "spec", "told"),
    [
        ({}, {"ranges": ((0.0, 1.0),), "columns": ("x0", "x1")}, "bounds 1 column.s., and the site has 2"),
        ({"weight": "y"}, {}, "the site has set --weight"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, settings, spec, told):
    guard = guard_of(tmp_path, spec=replace(SPEC, **spec), **settings)
    with pytest.raises(DeclinedError, match=told):
        guard.answer("private_columns", encode(HELLO), exchange=1)


def test_no_answer_depends_on_the_floor(tmp_path):
    asked = center_of(tmp_path, floor=1000.0)
    assert np.isfinite(asked.ask("private_columns").noisy).all()


def test_every_task_is_one_that_jobs_name():
    assert set(TASKS) <= set(declaration.TASKS)


def test_the_size_of_an_answer_does_not_depend_on_rows():
    declared = Declaration(
        FitSpec(Gaussian(Tied()), SPEC.algorithm, 3, ranges=((0.0, 1.0),) * 4, columns=("a",) * 4), 4
    )
    sizes = [declared.forms(task)[-1].reply.noisy.size for task in TASKS]
    assert sizes == [128, 15, 40 * 3, 3 * 5 + 10]


def test_the_log_tells_what_was_spent(tmp_path):
    center_of(tmp_path, total_epsilon=10.0).ask("private_columns")
    (page,) = pages(read_log(tmp_path / "north.jsonl"))
    assert "private, with epsilon 4 and delta 1e-06, so that 4 of 10 are spent" in page.about
    assert json.loads((tmp_path / "north-budget.jsonl").read_text())["epsilon"] == 4.0


def test_a_rehearsal_shows_the_private_conversation_and_spends_nothing(tmp_path):
    settings = write_site(tmp_path, "north", epsilon=4.0, ledger=None)
    messages, refused = rehearse("north", settings, 2)
    assert refused == ""
    assert [[name for name, *_ in message.fields] for message in messages] == [["noisy", "added"]] * 4
    assert not list(tmp_path.glob("*budget*"))
