"""The door of a site: what it lets in, what it lets out, and what it writes down of both."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from fedgrem.data.units import UnitsPlan
from fedgrem.engines.remote.account import pages
from fedgrem.engines.remote.course import BEGINNINGS
from fedgrem.engines.remote.declaration import CENSUS, HELLO, STEP, Declaration, Units
from fedgrem.engines.remote.guard import REFUSALS
from fedgrem.engines.remote.log import Log, check_log, read_log
from fedgrem.engines.remote.site import DeclinedError, SiteAtWork
from fedgrem.engines.remote.wire import encode
from fedgrem.families.regression import LinearRegression
from fedgrem.kernels.triangle import symmetric
from fedgrem.types import Params
from tests.engines.remote.coordinator import Coordinator, params_of_two
from tests.engines.remote.studies import fields, guard_of, spec_of, write_site

SPEC = spec_of(max_rounds=3, penalty=2.0, fallback=False, score=True)


@pytest.fixture
def log(tmp_path):
    return tmp_path / "guard.jsonl"


@pytest.fixture
def center(tmp_path, log):
    def make(spec=SPEC, run="run-1", now=None, **settings):
        clock = {} if now is None else {"now": lambda: now}
        site = write_site(tmp_path, "north", **settings)
        return Coordinator(guard_of(site, spec, log, run=run, **clock), spec, site)

    return make


def kinds(log):
    return [record["kind"] for record in read_log(log)]


# -- the course


def test_a_fit_in_its_order_is_answered_and_every_order_and_number_is_in_the_log(center, log):
    asked = center()
    for task in ("census", "start", "compare", STEP, STEP, STEP):
        asked.ask(task, new=True)
    for task in ("score", "look", "information"):
        asked.ask(task)
    records = list(read_log(log))
    assert kinds(log) == ["fit", *["order", "reply"] * 9]
    assert records[0]["spec"] == SPEC.as_plain()
    order, reply = records[7:9]
    assert (order["task"], order["exchange"]) == (STEP, 4)
    np.testing.assert_allclose(order["asked"]["mail.params.theta"], [[-3.0, -3.0], [3.0, 3.0]], atol=1e-6)
    assert reply["sent"]["n_rows"] == 47.0
    assert set(reply["sent"]) == {"params.weights", "params.theta", "step_scale", "n_rows", "log_likelihood"}
    assert log.stat().st_mode & 0o077 == 0, "for the site's own eyes"


@pytest.mark.parametrize(
    ("before", "task", "why"),
    [
        ((), "start", "a fit begins with 'census', not with 'start'"),
        (("census",), "step", "it is not the turn of 'step'; before it came 'census'"),
        (("census", "start", "compare"), "look", "it is not the turn of 'look'"),
        (("census", "start", "compare", "step", "look"), "step", "it is not the turn of 'step'; before it came 'look'"),
        (("census", "start", "compare", "step"), "compare", "it is not the turn of 'compare'"),
        (
            ("census", "start", "compare", *["step"] * 3),
            "step",
            "'step' was asked 3 time.s., which is all that this fit",
        ),
        (("census", "start", "compare", "step", "score"), "score", "'score' was asked 1 time.s."),
        (
            ("census", "start", "compare", "step", "look", "information"),
            "information",
            "'information' was asked 1 time",
        ),
        (("census",), "joint_start", "there is no task 'joint_start' in this fit"),
        (("census",), "path_score", "there is no task 'path_score' in this fit"),
    ],
)
def test_an_order_out_of_turn_is_refused_and_the_refusal_is_in_the_log(center, log, before, task, why):
    asked = center()
    for one in before:
        asked.ask(one, new=one == STEP)
    with pytest.raises(DeclinedError, match=why) as refusal:
        asked.ask(task, new=True)
    assert refusal.value.code == "order"
    assert list(read_log(log))[-1]["why"] == str(refusal.value)


def test_a_fit_may_begin_again_before_round_1_a_bounded_number_of_times_and_never_later(center):
    asked = center()
    asked.ask("census")
    for _ in range(BEGINNINGS - 1):
        asked.ask("start")
        asked.ask("compare", new=True)
    asked.ask("start")
    asked.ask("compare", new=True)
    for _ in range(2):  # said before, it is said again, and the fit does not begin for that
        asked.ask("start")
    with pytest.raises(DeclinedError, match="'compare' was asked 1 time"):
        asked.ask("compare", new=True)
    asked.ask("step")


def test_an_order_that_was_answered_before_is_answered_alike_out_of_turn_and_leads_nowhere(center):
    asked = center()
    first = [encode(asked.ask(task)) for task in ("census", "start", "compare", STEP)]
    again = center()  # as after damage to the center's journal
    assert [encode(again.ask(task)) for task in ("census", "start", "compare", STEP)] == first
    again.ask(STEP, new=True)
    with pytest.raises(DeclinedError, match="it is not the turn of 'compare'"):
        again.ask("compare", new=True)


def test_the_last_order_again_has_the_same_answer_and_counts_once(center, log):
    asked = center()
    for task in ("census", "start", "compare"):
        asked.ask(task)
    told = [encode(asked.ask(STEP, exchange=4)) for _ in range(5)]
    assert all(one == told[0] for one in told)
    assert kinds(log).count("order") == 4
    again = center()  # another process, as after a kill
    assert encode(again.ask(STEP, exchange=4)) == told[0]
    again.ask(STEP, new=True)


def test_rounds_that_a_torn_journal_has_forgotten_are_not_counted_twice(center):
    asked = center()
    for task in ("census", "start", "compare"):
        asked.ask(task)
    two = [params_of_two([[-3.0, shift], [3.0, 3.0]]) for shift in (-3.0, -2.0)]
    first = [encode(asked.ask(STEP, params=params)) for params in two]
    assert [encode(asked.ask(STEP, params=params)) for params in two] == first
    asked.ask(STEP, new=True)
    with pytest.raises(DeclinedError, match="'step' was asked 3"):
        asked.ask(STEP, new=True)


def test_after_a_restart_the_guard_goes_on_where_its_log_ends(center):
    for task in ("census", "start", "compare", STEP, STEP, STEP):
        center().ask(task, new=True)
    with pytest.raises(DeclinedError, match="'step' was asked 3"):
        center().ask(STEP, new=True)


def test_a_run_taken_up_with_another_spec_is_refused(center):
    center().ask("census")
    with pytest.raises(DeclinedError, match="run-1 was begun with another spec"):
        center(spec_of(max_rounds=1000)).ask("census")


def test_scores_and_information_are_about_the_same_end(center):
    asked = center()
    for task in ("census", "start", "compare", STEP, "score"):
        asked.ask(task)
    with pytest.raises(DeclinedError, match="asked about other parameters than the end of this fit"):
        asked.ask("information", new=True)
    asked.ask("information")


def test_a_fit_of_two_starts_has_two_ends_and_information_is_about_one_of_them(center):
    asked = center(replace(SPEC, smaller=Params(np.ones(1), np.zeros((1, 2)))))
    for task in ("census", "start", "compare", STEP, "score"):
        asked.ask(task, new=True)
    other = params_of_two(((-2.0, -2.0), (2.0, 2.0)))
    asked.ask(STEP, params=other)
    asked.ask("score", params=other)
    with pytest.raises(DeclinedError, match="asked about other parameters than the end of this fit"):
        asked.ask("information", new=True)
    asked.ask("information", params=other)


# -- units and values


STANDARD = spec_of(max_rounds=3, penalty=2.0, fallback=False, units=UnitsPlan(standardize=True))


def test_units_may_not_change_in_a_fit(center):
    asked = center(STANDARD)
    asked.ask("census")
    asked.ask("start", units=Units(np.zeros(2), np.ones(2)))
    with pytest.raises(DeclinedError, match="other units than those before it; they may not change in a fit"):
        asked.ask("compare", units=Units(np.zeros(2), np.full(2, 2.0)))


@pytest.mark.parametrize(
    ("units", "why"),
    [
        (Units(np.zeros(2), np.array([1.0, 1e-6])), "more than 1000 times off"),
        (Units(np.zeros(2), np.array([1.0, 1e6])), "more than 1000 times off"),
        (Units(np.array([0.0, 1e6]), np.ones(2)), "more than 1000 times off"),
        (Units(np.array([0.0, np.nan]), np.ones(2)), "not finite and positive"),
    ],
)
def test_units_that_cannot_be_common_are_refused(center, units, why):
    asked = center(STANDARD)
    asked.ask("census")
    with pytest.raises(DeclinedError, match=why):
        asked.ask("start", units=units)


def test_units_other_than_the_rows_own_are_refused_where_the_spec_has_none(center):
    asked = center(spec_of(units=UnitsPlan(standardize=False, intercept=True)))
    asked.ask("census")
    with pytest.raises(DeclinedError, match="the spec leaves columns as they are"):
        asked.ask("start", units=Units(np.zeros(2), np.full(2, 2.0)))


def test_rows_are_cut_in_two_or_four_and_never_so_that_a_part_is_a_single_row(center):
    asked = center(spec_of(max_rounds=1))
    for task in ("census", "start", "compare"):
        asked.ask(task)
    with pytest.raises(DeclinedError, match="cuts the rows in 47 parts, expected 2 or 4"):
        asked.ask("path_step", parts=47)


def test_weights_off_the_simplex_are_refused(center):
    asked = center()
    for task in ("census", "start", "compare"):
        asked.ask(task)
    with pytest.raises(DeclinedError, match="weights are not on the simplex"):
        asked.ask(STEP, params=params_of_two(weights=(0.5, 0.6)))


# -- the floor


def test_fewer_rows_than_the_floor_asks_for_are_a_reason_in_words(center, log):
    with pytest.raises(
        DeclinedError, match=r"a floor of 24 these are enough for 1 component\(s\), and the fit has 2"
    ) as no:
        center(floor=24.0).ask("census")
    assert no.value.code == "floor"
    assert kinds(log) == ["refusal"]


def test_a_row_that_weighs_a_thousand_is_one_row(tmp_path, log):
    settings = write_site(tmp_path, "north", floor=10.0)
    table = pl.read_parquet(settings.data).with_columns(w=pl.Series([1000.0] + [1.0] * 46))
    table.write_parquet(settings.data)
    guard = guard_of(settings._replace(weight="w"), SPEC, log)
    with pytest.raises(DeclinedError, match="47 rows, which weigh like 1: with a floor of 10 these are enough for 0"):
        guard.answer(CENSUS, encode(HELLO), exchange=1)


def test_a_component_below_the_floor_is_answered_as_it_was_sent_and_the_fit_goes_on(center, log):
    asked = center(floor=10.0)
    for task in ("census", "start", "compare"):
        asked.ask(task)
    away = params_of_two(theta=((0.0, 0.0), (40.0, 40.0)))
    reply = asked.ask(STEP, params=away)
    np.testing.assert_array_equal(reply.params.theta[1], away.theta[1])
    np.testing.assert_allclose(reply.params.weights, [1.0 - 1e-6, 1e-6], rtol=1e-12)
    assert list(read_log(log))[-1]["held_back"] == [1]
    # Its rows count among the others': a step of 0.95 from (0, 0) to the mean of all.
    np.testing.assert_allclose(reply.params.theta[0], 0.95 * asked.rows().mean(axis=0), atol=1e-6)
    assert asked.ask("look", params=away).params.theta[1].tolist() == [40.0, 40.0]
    information = asked.ask("information", params=away)
    matrix = symmetric(information.packed)
    assert np.all(matrix[[1, 4, 5]] == 0), "of its log weight and its two parameters"
    assert np.all(np.diagonal(matrix)[[2, 3]] > 0)


def test_a_site_may_raise_its_floor_and_no_order_lowers_it(center, log):
    held = []
    for floor in (1.0, 10.0, 23.0):
        asked = center(run=f"run-{floor:g}", floor=floor)
        for task in ("census", "start", "compare"):
            asked.ask(task)
        held.append(list(read_log(log))[-1].get("held_back", []))
    assert held[:2] == [[], []]
    assert len(held[2]) == 1


# -- how often


def test_fits_are_counted_by_the_day(center, log):
    now = datetime.now(UTC)
    for number in range(3):
        center(run=f"run-{number}", fits_per_day=3).ask("census")
    with pytest.raises(DeclinedError, match="3 fits were begun within a day, and the site answers 3") as refusal:
        center(run="run-3", fits_per_day=3).ask("census")
    assert refusal.value.code == "often"
    center(run="run-2", fits_per_day=3).ask("start")  # one that was begun goes on
    center(run="run-4", fits_per_day=3, now=now + timedelta(hours=25)).ask("census")


def test_after_some_refusals_a_fit_is_refused_altogether_and_the_log_does_not_grow(center, log):
    asked = center()
    asked.ask("census")
    for number in range(2 * REFUSALS):
        with pytest.raises(DeclinedError) as refusal:
            asked.ask("look", new=True)
        assert refusal.value.code == ("order" if number < REFUSALS else "often")
    with pytest.raises(DeclinedError, match="orders of run-1 were refused; it is not answered any more"):
        center().ask("start")
    assert kinds(log).count("refusal") == REFUSALS


@pytest.mark.parametrize(("more", "refused"), [(1, True), (9, True), (10, False)])
def test_rows_that_changed_by_fewer_than_the_floor_are_not_fitted_again(tmp_path, log, more, refused):
    settings = write_site(tmp_path, "north", floor=10.0)
    guard_of(settings, SPEC, log).answer(CENSUS, encode(HELLO), exchange=1)
    table = pl.read_parquet(settings.data)
    pl.concat([table, table[:more] * 1.01]).write_parquet(settings.data)
    later = guard_of(settings, SPEC, log, run="run-2")
    if not refused:
        later.answer(CENSUS, encode(HELLO), exchange=1)
        return
    with pytest.raises(
        DeclinedError, match=f"changed since run-1, by {more} in number, below the floor of 10"
    ) as refusal:
        later.answer(CENSUS, encode(HELLO), exchange=1)
    assert refusal.value.code == "changed"
    Log(log).append("accepted", why="the site says so")
    guard_of(settings, SPEC, log, run="run-3").answer(CENSUS, encode(HELLO), exchange=1)


def test_rows_may_not_change_within_a_fit(tmp_path, log):
    settings = write_site(tmp_path, "north")
    guard_of(settings, SPEC, log).answer(CENSUS, encode(HELLO), exchange=1)
    pl.read_parquet(settings.data)[:20].write_parquet(settings.data)
    with pytest.raises(DeclinedError, match="the rows are not those with which run-1 was begun"):
        guard_of(settings, SPEC, log).answer(CENSUS, encode(HELLO), exchange=1)


# -- what leaves


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda sent: sent | fields(rows=np.ones((40, 2))), "also holds rows"),
        (lambda sent: sent | fields(mean=np.ones(47)), r"mean of shape \(47,\), expected \(2,\)"),
        (lambda sent: sent | fields(n_rows=np.array(40)), "n_rows of type int64, expected float64"),
    ],
)
def test_what_was_not_declared_does_not_leave(tmp_path, log, change, message):
    settings = write_site(tmp_path, "north")
    guard = guard_of(settings, SPEC, log)
    census = SiteAtWork("north", settings, SPEC).work(CENSUS, HELLO).reply
    with pytest.raises(DeclinedError, match=message) as declined:
        guard.judge(CENSUS, change(encode(census)))
    assert declined.value.code == "guard"


def test_names_in_the_first_report_are_those_of_the_columns(tmp_path, log):
    settings = write_site(tmp_path, "north")
    census = SiteAtWork("north", settings, SPEC).work(CENSUS, HELLO).reply
    census.names[0, 10:20] = 65
    with pytest.raises(DeclinedError, match="names in the reply are not those of the site's columns"):
        guard_of(settings, SPEC, log).judge(CENSUS, encode(census))


def test_agreed_columns_are_compared_at_the_site_and_their_names_do_not_leave(center, log):
    spec = spec_of(columns=("x0", "x1"))
    sent = center(spec).ask("census")
    assert sent.names == ()
    assert "names" not in list(read_log(log))[-1]["sent"]


def test_a_message_above_the_cap_does_not_leave(center, log):
    with pytest.raises(DeclinedError, match=r"the reply has \d+ bytes, and at most 79 may leave"):
        center(cap=79).ask("census")
    assert "reply" not in kinds(log)


def test_nothing_leaves_that_cannot_be_written_down_and_a_full_disk_is_no_refusal(center, monkeypatch):
    asked = center()
    asked.ask("census")
    with monkeypatch.context() as patch:
        patch.setattr("os.write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        for _ in range(REFUSALS + 1):
            with pytest.raises(DeclinedError, match=r"the log cannot be written .*No space left.*; nothing leaves"):
                asked.ask("start")
    asked.ask("start")


# -- the log


def test_a_record_that_is_changed_taken_out_or_put_in_shows(center, log):
    asked = center()
    for task in ("census", "start", "compare"):
        asked.ask(task)
    assert check_log(log).broken == ""
    lines = log.read_text().splitlines(keepends=True)
    for tampered in (
        [*lines[:2], lines[2].replace("47.0", "48.0"), *lines[3:]],
        [*lines[:3], *lines[4:]],
        [*lines[:3], lines[2], *lines[3:]],
        [lines[1], lines[0], *lines[2:]],
    ):
        log.write_text("".join(tampered))
        assert "does not follow from the one before it" in check_log(log).broken
    log.write_text("".join(lines[:-1]))
    assert check_log(log).broken == "", "a cut at the end shows by the hash at the end only"
    assert check_log(log).last != json.loads(lines[-1])["chain"]


def test_a_record_torn_by_a_crash_is_told_and_the_log_goes_on(center, log):
    center().ask("census")
    whole = log.read_bytes()
    log.write_bytes(whole[:-40])
    center().ask("census", new=True)
    checked = check_log(log)
    assert (checked.broken, len(checked.torn)) == ("", 1)


def test_two_processes_write_one_chain(log):
    one, other = Log(log), Log(log)
    for number in range(6):
        (one, other)[number % 2].append("accepted", why=str(number))
    assert check_log(log)[0::3] == (6, "")


def test_the_account_says_in_words_what_was_asked_what_left_and_what_was_refused(center, log):
    asked = center()
    for task in ("census", "start", "compare", STEP, STEP):
        asked.ask(task, new=True)
    for _ in range(2):
        with pytest.raises(DeclinedError):
            asked.ask("compare", new=True)
    (page,) = pages(read_log(log))
    assert page.about.startswith("2 component(s) of the family gaussian, by fedgrem, in at most 3 rounds")
    assert "47 rows; floor 1 rows" in page.about
    rounds = next(line for line in page.lines if line.title == "Every round")
    assert rounds[1:] == (2, 2, 2 * (2 + 4 + 2 + 1 + 1), 0, 0)
    assert page.numbers == sum(line.numbers for line in page.lines)
    (refusal,) = page.refusals
    assert refusal.endswith("'compare': it is not the turn of 'compare'; before it came 'step'. (2 times)")


def test_the_course_is_that_of_the_spec():
    tasks = [task for task, _ in Declaration(spec_of(family=LinearRegression("shared"), score=True), 2).played()]
    expected = "census start joint_start compare path_step path_score weights_score step score look information"
    assert tasks == expected.split()
    smaller = Params(np.ones(1), np.zeros((1, 2)))
    tasks = [task for task, _ in Declaration(replace(SPEC, smaller=smaller), 2).played()]
    assert tasks == "census start compare step score step score look information".split()
    assert [task for task, _ in Declaration(SPEC, 2).played()].count(STEP) == 1
