"""The engine whose sites are elsewhere, with sites at hand: the same answer, and what happens when sites fail."""

import time

import numpy as np
import pytest

from fedgrem import FederatedGaussianMixture, FederatedMixture, FederatedRegressionMixture
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.algorithms.registry import ALGORITHMS
from fedgrem.engines.remote import delivery
from fedgrem.engines.remote.declaration import CENSUS, STEP, write_names
from fedgrem.engines.remote.delivery import Answer
from fedgrem.engines.remote.journal import JOURNAL, read_journal
from fedgrem.engines.remote.result import RESULT, read_result
from fedgrem.engines.remote.roster import Rules
from fedgrem.engines.remote.run import fit_over_network
from fedgrem.engines.remote.wire import unpack
from fedgrem.errors import InputError, PausedError
from fedgrem.estimators.network import adopt, spec_for
from fedgrem.fit.spec import read_spec
from tests.engines.remote.studies import NAMES, AtHand, fields, rows_of

QUICK = Rules(min_sites=2, deadline=0.3, patience=0.0)
SMALL = {"n_components": 2, "n_init": 2, "penalty": 2.0, "max_rounds": 6, "tol": 0.0, "random_state": 5}
SMALL |= {"standard_errors": False}
POOLED = [name for name, kind in ALGORITHMS.items() if kind.traits.pools_rows]
FEDERATED = [name for name in ALGORITHMS if name not in POOLED]
AFTER = ("look", "information")


def small(options):
    """Options of a small fit; a penalty is for those that have one."""
    pulls = options.get("algorithm", "fedgrem") == "fedgrem" or isinstance(options["algorithm"], FedGrEM)
    return {name: value for name, value in SMALL.items() if pulls or name != "penalty"} | options


def gaussian(**options):
    return FederatedGaussianMixture(**small({"covariance_type": "identity"} | options))


def tied(**options):
    return FederatedGaussianMixture(**small(options))


def regression(**options):
    return FederatedRegressionMixture(**small({"n_init": 1} | options))


def in_process(model, names=NAMES):
    rows = {name: rows_of(name) for name in names}
    explains = isinstance(model, FederatedRegressionMixture)
    return model.fit({n: x for n, (x, _) in rows.items()}, {n: y for n, (_, y) in rows.items()} if explains else None)


def over_network(folder, model, rules=QUICK, names=NAMES, **more):
    spec = read_spec(spec_for(model).to_json())
    return fit_over_network(spec, list(names), AtHand(folder, spec, names, **more), folder / "run", rules)


def assert_same(finished, expected, tol=1e-10):
    """Everything that a model holds."""
    model = adopt(type(expected)(**expected.get_params(deep=False)), finished, None)
    actual, wanted = model.fitted_values(), expected.fitted_values()
    actual["cost_"] = {name: actual["cost_"][name] for name in wanted["cost_"]}
    assert actual.keys() == wanted.keys()
    for name in wanted:
        assert_close(actual[name], wanted[name], name, tol)
    return model


def assert_close(actual, wanted, name, tol):
    if isinstance(wanted, dict):
        assert actual.keys() == wanted.keys(), name
        for key in wanted:
            assert_close(actual[key], wanted[key], f"{name}[{key}]", tol)
    elif np.asarray(wanted).dtype.kind in "fc":
        np.testing.assert_allclose(actual, wanted, rtol=tol, atol=tol, err_msg=name)
    else:
        np.testing.assert_array_equal(actual, wanted, err_msg=name)


def assert_identical(actual, expected):
    """Two results, bit for bit; what the journey cost may differ."""
    plain = [one._asdict() | {"influence": one.influence._asdict(), "cost": {}} for one in (actual, expected)]
    assert_close(*plain, "result", 0.0)


# -- the in-process answer


@pytest.mark.parametrize("kind", [gaussian, tied, regression])
@pytest.mark.parametrize("algorithm", FEDERATED)
def test_every_algorithm_gives_the_in_process_answer(tmp_path, kind, algorithm):
    finished = over_network(tmp_path, kind(algorithm=algorithm))
    assert finished.about["events"] == []
    assert_same(finished, in_process(kind(algorithm=algorithm)))


@pytest.mark.parametrize("response", ["binary", "count"])
def test_other_responses_give_the_in_process_answer(tmp_path, monkeypatch, response):
    plain = rows_of

    def drawn(name, *more):
        rows, y = plain(name, *more)
        return rows, (y > 0).astype(float) if response == "binary" else np.maximum(np.round(y), 0.0)

    for place in ("test_engine", "studies"):
        monkeypatch.setattr(f"tests.engines.remote.{place}.rows_of", drawn, raising=True)
    finished = over_network(tmp_path, regression(response=response))
    assert finished.about["events"] == []
    assert_same(finished, in_process(regression(response=response)))


def test_sampled_sites_and_mini_batches_give_the_in_process_answer(tmp_path):
    options = {"algorithm": FedGrEM(sites=0.7, batch=0.5, local_steps=2), "max_rounds": 8}
    finished = over_network(tmp_path, tied(**options))
    assert_same(finished, in_process(tied(**options)))
    rounds = [record.about for record in journal_of(tmp_path) if record.about["task"] == STEP]
    assert {len(record["sites"]) for record in rounds} == {2, 3}, "everyone in round 1, two later"


def test_a_fit_of_sampled_sites_and_mini_batches_settles_by_itself_and_sites_remember_nothing(tmp_path):
    options = {"algorithm": FedGrEM(sites=0.7, batch=0.5), "max_rounds": 300, "tol": 1e-5}
    finished = over_network(tmp_path, tied(**options))
    assert finished.result.converged
    assert finished.result.n_rounds < 150
    assert_same(finished, in_process(tied(**options)))


@pytest.mark.parametrize("kind", [tied, regression])
def test_a_default_fit_is_the_in_process_one_with_its_path_verdicts_and_errors(tmp_path, kind):
    options = {"penalty": "auto", "tol": 1e-5, "max_rounds": 300, "standard_errors": True}
    finished = over_network(tmp_path, kind(**options))
    expected = in_process(kind(**options))
    assert expected.converged_
    assert_same(finished, expected)
    cost = finished.result.cost
    steps = ("census_exchanges", "start_exchanges", "penalty_exchanges", "rounds", "look_exchanges")
    assert cost["exchanges"] == sum(cost[step] for step in steps) + cost["information_exchanges"]


def test_what_a_round_costs_is_told(tmp_path):
    cost = over_network(tmp_path, gaussian()).result.cost
    assert cost["bytes_received_per_round_and_site"] == 8 * (2 + 4 + 2 + 1 + 1)
    assert cost["exchanges"] == 1 + cost["start_exchanges"] + cost["rounds"] + 1


def test_rows_with_missing_cells_at_one_site_give_the_in_process_answer(tmp_path):
    import polars as pl

    model = tied(missing="em")
    spec = spec_for(model)
    transport = AtHand(tmp_path, spec)
    rows = {name: rows_of(name)[0] for name in NAMES}
    rows["north"][3, 1] = np.nan
    pl.DataFrame(rows["north"], schema=["x0", "x1"]).write_parquet(tmp_path / "north.parquet")
    finished = fit_over_network(spec, list(NAMES), transport, tmp_path / "run", QUICK)
    assert_same(finished, tied(missing="em").fit(rows))


@pytest.mark.parametrize("name", POOLED)
def test_algorithms_that_pool_rows_are_refused(name):
    with pytest.raises(InputError, match="pools the rows of all sites, and over a network rows stay where they are"):
        spec_for(gaussian(algorithm=name))


def test_functions_of_a_user_do_not_travel():
    pytest.importorskip("jax")
    model = FederatedMixture(log_density=lambda x, t: -((x - t) ** 2).sum(), draw_start=lambda k, x: x.mean(axis=0))
    with pytest.raises(InputError, match="holds functions of your own, and no code travels"):
        spec_for(model)


def test_given_starts_are_refused():
    with pytest.raises(InputError, match="starts cannot be given to a fit over a network yet"):
        spec_for(gaussian(means_init=np.zeros((3, 2, 2))))


# -- bad sites


def journal_of(folder):
    """The exchanges of a run."""
    return list(read_journal(folder / "run" / JOURNAL))[1:]


def start_of(folder, site):
    """(2, 2) the component means from which a site began the rounds, in any order."""
    (record,) = [record for record in journal_of(folder) if record.about["task"] == "compare"]
    theta = unpack("theta", record.fields["params.theta"])[record.about["sites"].index(site)]
    return np.sort(theta, axis=0)


def theta_of(finished, site):
    return np.sort(finished.result.theta[finished.result.site_names.index(site)], axis=0)


def spoil_rounds(site, how, when=lambda n: True):
    """What a site sends in its rounds, changed by ``how``; ``when`` is asked with the number of its round."""
    rounds = []

    def spoil(who, task, exchange, answer):
        if who != site or task != STEP:
            return answer
        rounds.append(exchange)
        return how(answer) if when(len(rounds)) else answer

    return spoil


def with_nan(answer):
    return answer._replace(
        fields=answer.fields | fields(params__theta=np.full(answer.fields["params.theta"]["shape"], np.nan))
    )


def test_a_site_that_is_gone_before_the_standard_errors_has_none_and_the_fit_stands(tmp_path):
    def vanish(site, task, exchange, answer):
        gone = site == "east" and task == "information"
        return Answer(None, exchange, trouble="nobody there") if gone else answer

    finished = over_network(tmp_path, gaussian(standard_errors=True, penalty=0.0), spoil=vanish)
    model = adopt(gaussian(standard_errors=True, penalty=0.0), finished, None)
    np.testing.assert_allclose(model.means_, in_process(gaussian(penalty=0.0)).means_, rtol=1e-10)
    assert np.isnan(model.means_se_[0]).all()
    assert np.isfinite(model.means_se_[1:]).all()
    ((site, what),) = [(event["site"], event["what"]) for event in finished.about["events"]]
    assert (site, what) == ("east", "silent after the rounds")


def test_one_bad_answer_is_left_out_of_its_round_and_the_site_stays(tmp_path):
    spoil = spoil_rounds("north", with_nan, lambda n: n == 2)
    finished = over_network(tmp_path, gaussian(), spoil=spoil)
    (event,) = finished.about["events"]
    assert (event["site"], event["what"]) == ("north", "left out of this round")
    assert "site 'north' sent NaN or infinity in 4 of 4 number(s) of params.theta" in event["reason"]
    assert finished.about["out"] == {}
    rounds = [record.about["sites"] for record in journal_of(tmp_path) if record.about["task"] == STEP]
    assert [k for k, sites in enumerate(rounds) if "north" not in sites] == [1]
    movement = finished.result.history["movement"][:, NAMES.index("north")]
    assert movement[1] == movement[0], "as it was last heard"
    assert np.all(np.isfinite(finished.result.theta))


def test_a_site_that_is_left_out_has_no_say_in_that_round(tmp_path):
    # The others' round is the same whatever the spoilt site had sent.
    alone = over_network(tmp_path, gaussian(max_rounds=1), spoil=spoil_rounds("north", with_nan))
    (tmp_path / "again").mkdir()
    late = spoil_rounds("north", lambda a: Answer(a.fields, a.exchange - 1))
    again = over_network(tmp_path / "again", gaussian(max_rounds=1), spoil=late)
    assert_close(again.result.theta, alone.result.theta, "theta", 0.0)
    assert "answered exchange" in again.about["events"][0]["reason"]


def test_three_strikes_and_it_is_out_of_the_run(tmp_path):
    spec = spec_for(gaussian())
    transport = AtHand(tmp_path, spec, spoil=spoil_rounds("north", with_nan))
    finished = fit_over_network(spec, list(NAMES), transport, tmp_path / "run", QUICK)
    assert "3 bad answers, the last: site 'north' sent NaN" in finished.about["out"]["north"]
    asked = [exchange for site, task, exchange in transport.asked if (site, task) == ("north", STEP)]
    assert len(asked) == 3
    assert finished.result.site_names == NAMES, "its last parameters are kept"
    assert finished.result.n_rounds == 6


def test_where_too_many_invited_sites_are_out_the_others_are_asked(tmp_path):
    spoil = spoil_rounds("north", with_nan)
    model = gaussian(algorithm=FedGrEM(sites=0.7, local_steps=1, memory=0), max_rounds=12)
    finished = over_network(tmp_path, model, QUICK._replace(patience=5.0), spoil=spoil)
    assert "north" in finished.about["out"]
    rounds = [record.about["sites"] for record in journal_of(tmp_path) if record.about["task"] == STEP]
    assert all(len(sites) == 2 for sites in rounds[-3:]), "whoever was invited"
    assert np.all(np.isfinite(finished.result.theta))


@pytest.mark.parametrize("algorithm", FEDERATED)
def test_a_site_that_misses_every_round_keeps_its_weights_and_the_others_go_on(tmp_path, algorithm):
    def quiet(site, task, exchange, answer):
        return Answer(None, trouble="TIMEOUT") if site == "north" and task in (STEP, *AFTER) else answer

    # Nothing sits on the center, with which it would move: no penalty, and too many columns for a median to be a site.
    alone = {"algorithm": FedGrEM(local_steps=1, memory=0), "penalty": 0.0} if algorithm == "fedgrem" else {}
    model = gaussian(**{"algorithm": algorithm, "max_rounds": 2} | alone)
    finished = over_network(tmp_path, model, Rules(min_sites=1, deadline=0.1, patience=0.0), spoil=quiet, n_columns=4)
    assert finished.about["away"] == ["north"]
    rounds = [record.about["sites"] for record in journal_of(tmp_path) if record.about["task"] == STEP]
    assert len(rounds) == 2
    assert "north" not in {site for sites in rounds for site in sites}
    assert np.all(np.isfinite(finished.result.theta))
    if ALGORITHMS[algorithm].traits.sharing != "all" and not ALGORITHMS[algorithm].traits.starts_alone:
        np.testing.assert_array_equal(theta_of(finished, "north"), start_of(tmp_path, "north"))


def test_a_site_past_its_deadline_is_skipped_and_may_come_back(tmp_path):
    spoil = spoil_rounds("south", lambda a: Answer(None, trouble="TIMEOUT"), lambda n: n < 7)
    finished = over_network(tmp_path, gaussian(max_rounds=80), spoil=spoil)
    told = [(event["site"], event["what"]) for event in finished.about["events"]]
    assert told == [("south", "away"), ("south", "back")]
    assert "no answer in time (TIMEOUT)" in finished.about["events"][0]["reason"]
    movement = finished.result.history["movement"][:, NAMES.index("south")]
    assert movement[0] == np.inf, "not heard yet"
    assert np.isfinite(movement[-1])
    assert finished.about["away"] == []


def test_a_site_whose_kit_runs_twice_is_named_once(tmp_path):
    finished = over_network(
        tmp_path, gaussian(), spoil=lambda site, task, n, a: a._replace(place=f"{site}-{(site == 'east') * (n % 2)}")
    )
    (event,) = finished.about["events"]
    assert (event["site"], event["what"]) == ("east", "answers from two places")
    assert "its kit runs twice" in event["reason"]


def test_rounds_do_not_wait_for_a_site_that_is_away(tmp_path):
    def hang(site, task, exchange, answer):
        if site == "north" and task in (STEP, *AFTER):
            time.sleep(2.0)
            return Answer(None, trouble="TIMEOUT")
        return answer

    finished = over_network(tmp_path, gaussian(max_rounds=20), spoil=hang)
    seconds = [record.about["traffic"]["seconds"] for record in journal_of(tmp_path) if record.about["task"] == STEP]
    assert seconds[0] > 1.9
    assert sum(seconds[1:]) < 1.9, "19 rounds in less time than it takes to ask it once"
    assert finished.about["away"] == ["north"]


def test_a_site_that_nobody_reaches_is_not_waited_for_until_the_deadline_and_one_at_work_is(tmp_path, monkeypatch):
    monkeypatch.setattr(delivery, "RESTART", 0.5)
    monkeypatch.setattr(delivery, "ATTEMPT", 1.0)
    asked = []

    class Wire(AtHand):
        def ask(self, site, task, exchange, order, timeout):
            if (site, task) == ("north", STEP):
                return Answer(None, trouble="ERROR")
            if (site, task) == ("south", STEP) and len(asked) < 2:
                asked.append(time.sleep(timeout))  # longer than dead sites are waited for
                return Answer(None, trouble="TIMEOUT")
            return super().ask(site, task, exchange, order, timeout)

    spec, rules = spec_for(gaussian()), QUICK._replace(deadline=60.0)
    finished = fit_over_network(spec, list(NAMES), Wire(tmp_path, spec), tmp_path / "run", rules)
    seconds = [record.about["traffic"]["seconds"] for record in journal_of(tmp_path) if record.about["task"] == STEP]
    assert seconds[0] < 30.0
    assert [(event["site"], event["what"]) for event in finished.about["events"]] == [("north", "away")]


def test_a_site_that_declines_is_skipped_with_its_reason(tmp_path):
    spoil = spoil_rounds("south", lambda a: Answer(None, a.exchange, "floor"), lambda n: n > 1)
    finished = over_network(tmp_path, gaussian(), spoil=spoil)
    (event,) = finished.about["events"]
    assert event["reason"] == "it does not answer: it would have to tell of fewer rows than the floor it has set"


def test_a_reason_of_a_sites_own_making_is_not_passed_on(tmp_path):
    spoil = spoil_rounds("south", lambda a: Answer(None, a.exchange, "<b>row 7: 42</b>"))
    finished = over_network(tmp_path, gaussian(), spoil=spoil)
    assert finished.about["events"][0]["reason"] == "it does not answer: for a reason of its own"


@pytest.mark.parametrize("task", [CENSUS, "start", "compare", "path_step", "path_score"])
def test_a_site_lost_before_round_1_is_as_if_it_had_never_been_there(tmp_path, task):
    def lose(site, now, exchange, answer):
        return Answer(None, trouble="TIMEOUT") if site == "north" and now == task else answer

    finished = over_network(tmp_path, gaussian(penalty="auto", max_rounds=2), spoil=lose)
    assert "no answer in time" in finished.about["out"]["north"]
    rest = tuple(name for name in NAMES if name != "north")
    assert_same(finished, in_process(gaussian(penalty="auto", max_rounds=2), rest))


def test_a_site_with_other_columns_takes_no_part(tmp_path):
    def rename(site, task, exchange, answer):
        if site != "east" or task != CENSUS:
            return answer
        return answer._replace(fields=answer.fields | fields(names=write_names(["x1", "x0"])))

    finished = over_network(tmp_path, gaussian(), spoil=rename)
    assert finished.about["out"] == {"east": "its columns are x1, x0, and those of most sites x0, x1"}
    assert finished.result.site_names == ("north", "south")


def test_a_site_with_another_number_of_columns_takes_no_part(tmp_path):
    def widen(site, task, exchange, answer):
        if site != "east" or task != CENSUS:
            return answer
        return answer._replace(fields=answer.fields | fields(mean=np.ones(9)))

    finished = over_network(tmp_path, gaussian(), spoil=widen)
    assert finished.about["out"] == {"east": "site 'east' has mean of shape (9,), expected (2,)."}


@pytest.mark.parametrize(
    "nonsense",
    [{}, {"mean": 3}, {"mean": {"shape": 7, "dtype": "<f8", "bytes": b""}}, {"mean": {"shape": [10**12]}}, {1: 2}],
)
def test_nonsense_from_one_site_does_not_stop_the_others(tmp_path, nonsense):
    def babble(site, task, exchange, answer):
        return Answer(nonsense, exchange) if site == "east" else answer

    finished = over_network(tmp_path, gaussian(max_rounds=1), spoil=babble)
    assert finished.result.site_names == ("north", "south")
    assert "site 'east'" in finished.about["out"]["east"]


def test_a_column_that_is_constant_everywhere_is_refused_by_name(tmp_path):
    def flatten(site, task, exchange, answer):
        flat = fields(mean=np.array([1.0, 0.0]), deviation=np.array([0.0, 1.0]))
        return answer._replace(fields=answer.fields | flat) if task == CENSUS else answer

    with pytest.raises(InputError, match=r"column 'x0' is constant \(1\) at every site and carries no information"):
        over_network(tmp_path, gaussian(), spoil=flatten)


# -- pausing


def test_below_the_quorum_the_run_pauses_keeps_its_journal_and_says_why(tmp_path):
    def quiet(site, task, exchange, answer):
        return Answer(None, trouble="TIMEOUT") if site != "east" and task == STEP and exchange > 6 else answer

    with pytest.raises(PausedError) as paused:
        over_network(tmp_path, gaussian(), spoil=quiet)
    assert "paused: 1 of 3 site(s) answered, and min_sites is 2" in str(paused.value)
    assert "north: no answer in time (TIMEOUT)" in str(paused.value)
    assert journal_of(tmp_path)[-1].about["task"] == STEP
    assert not (tmp_path / "run" / RESULT).exists()


def test_after_a_pause_everybody_is_waited_for_again(tmp_path):
    def pause(site, task, exchange, answer):
        return Answer(None, trouble="TIMEOUT") if site != "east" and task == STEP and exchange > 6 else answer

    with pytest.raises(PausedError):
        over_network(tmp_path, gaussian(), spoil=pause)
    resumed = over_network(tmp_path, gaussian())
    assert resumed.about["away"] == []
    assert_same(resumed, in_process(gaussian()))


@pytest.mark.parametrize("task", [CENSUS, "compare"])
def test_a_run_that_paused_before_round_1_begins_again_with_every_site(tmp_path, task):
    def nobody(site, now, exchange, answer):
        return Answer(None, trouble="TIMEOUT") if site != "east" and now == task else answer

    for _ in range(2):
        with pytest.raises(PausedError, match=r"paused: 1 of 3 site\(s\) answered"):
            over_network(tmp_path, gaussian(), spoil=nobody)
    resumed = over_network(tmp_path, gaussian())
    assert resumed.result.site_names == NAMES
    assert_same(resumed, in_process(gaussian()))


def test_a_result_comes_back_from_disk_as_it_was(tmp_path):
    finished = over_network(tmp_path, tied(penalty="auto", standard_errors=True))
    stored = read_result(tmp_path / "run")
    assert stored.about == finished.about
    assert stored.result.cost == finished.result.cost
    assert_identical(stored.result, finished.result)
