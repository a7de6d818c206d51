"""The engine whose sites are elsewhere, with sites at hand: the same answer, and what happens when sites fail."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedgrem import FederatedGaussianMixture, FederatedMixture, FederatedRegressionMixture
from fedgrem.algorithms.registry import ALGORITHMS
from fedgrem.engines.flare.center import fit_over_network
from fedgrem.engines.flare.declaration import AFTER_TASKS, CENSUS, INFORMATION, LOOK, STEP, write_names
from fedgrem.engines.flare.engine import Answer, has_site_axis
from fedgrem.engines.flare.recipe import Recipe, read_recipe
from fedgrem.engines.flare.roster import Rules
from fedgrem.engines.flare.store import CHECKPOINT, RESULT, read_checkpoint, read_result
from fedgrem.engines.flare.wire import encode
from fedgrem.errors import InputError, ModelFileError, PausedError
from fedgrem.estimators.network import adopt, recipe_for
from fedgrem.types import Params
from tests.engines.flare.studies import NAMES, AtHand, rows_of

QUICK = Rules(min_sites=2, deadline=0.3, patience=0.0)
POOLED = ("pooled-em", "pooled-grem")
SMALL = {
    "n_components": 2,
    "n_init": 2,
    "penalty": 2.0,
    "max_rounds": 6,
    "tol": 0.0,
    "random_state": 5,
    "standard_errors": False,
}


def gaussian(**options):
    return FederatedGaussianMixture(**SMALL | {"covariance": "identity"} | options)


def in_process(model, names=NAMES):
    rows = {name: rows_of(name) for name in names}
    regression = isinstance(model, FederatedRegressionMixture)
    return model.fit({n: x for n, (x, _) in rows.items()}, {n: y for n, (_, y) in rows.items()} if regression else None)


def over_network(folder, model, rules=QUICK, names=NAMES, **more):
    recipe = read_recipe(recipe_for(model).as_plain())
    return fit_over_network(recipe, list(names), AtHand(folder, recipe, names, **more), folder / "run", rules)


def assert_same(finished, expected, names=("weights_", "center_", "n_rows_", "site_distance_")):
    model = adopt(type(expected)(**expected.get_params()), finished, None)
    for name in (*names, f"{model._theta_name}_"):
        np.testing.assert_allclose(getattr(model, name), getattr(expected, name), rtol=1e-10, atol=1e-10, err_msg=name)
    for name, kept in expected.history_.items():
        np.testing.assert_allclose(model.history_[name], kept, rtol=1e-8, atol=1e-8, err_msg=name)
    assert model.site_names_.tolist() == expected.site_names_.tolist()
    assert model.n_rounds_ == expected.n_rounds_
    return model


def tied(**options):
    return FederatedGaussianMixture(**SMALL | options)


def regression(**options):
    return FederatedRegressionMixture(**SMALL | {"noise": "shared", "n_init": 1} | options)


FEDERATED = [name for name in ALGORITHMS if name not in POOLED]
EVERY = [(gaussian, name) for name in FEDERATED]
EVERY += [
    pytest.param(kind, name, marks=[] if (kind, name) == (regression, "fedgrem") else pytest.mark.slow)
    for kind in (tied, regression)  # minutes of compiling; tied FedGrEM is in the test of results on disk
    for name in FEDERATED
]


@pytest.mark.parametrize(("kind", "algorithm"), EVERY)
def test_every_algorithm_gives_the_in_process_answer(tmp_path, kind, algorithm):
    finished = over_network(tmp_path, kind(algorithm=algorithm))
    assert finished.about["events"] == []
    assert_same(finished, in_process(kind(algorithm=algorithm)))


def test_a_fit_that_settles_stops_at_the_same_round_and_says_what_it_cost(tmp_path):
    options = {"max_rounds": 300, "tol": 1e-5, "standard_errors": True}
    finished = over_network(tmp_path, gaussian(**options))
    expected = in_process(gaussian(**options))
    assert expected.converged_
    model = assert_same(finished, expected)
    assert model.converged_
    cost = finished.result.cost
    assert cost["exchanges"] == 1 + cost["start_exchanges"] + cost["rounds"] + 2, "the look and the errors"
    for name in ("weights_se_", "means_se_", "center_se_"):
        np.testing.assert_allclose(getattr(model, name), getattr(expected, name), rtol=1e-8, err_msg=name)
    assert cost["bytes_received_per_round_and_site"] == 8 * (2 + 4 + 2 + 1 + 1)
    assert {name: cost[name] for name in expected.cost_} == expected.cost_


def test_a_site_that_is_gone_before_the_standard_errors_has_none_and_the_fit_stands(tmp_path):
    def vanish(site, task, exchange, answer):
        gone = site == "east" and task == INFORMATION
        return Answer(None, exchange, trouble="nobody there") if gone else answer

    finished = over_network(tmp_path, gaussian(standard_errors=True, penalty=0.0), spoil=vanish)
    model = assert_same(finished, in_process(gaussian(penalty=0.0)))
    assert np.isnan(model.means_se_[0]).all()
    assert np.isfinite(model.means_se_[1:]).all()
    assert [event["site"] for event in finished.about["events"]] == ["east"]


@pytest.mark.slow
def test_rows_with_gaps_at_one_site_give_the_in_process_answer(tmp_path):
    import polars as pl

    model = FederatedGaussianMixture(**SMALL, missing="em")
    recipe = recipe_for(model)
    transport = AtHand(tmp_path, recipe)
    rows = {name: rows_of(name)[0] for name in NAMES}
    rows["north"][3, 1] = np.nan
    pl.DataFrame(rows["north"], schema=["x0", "x1"]).write_parquet(tmp_path / "north.parquet")
    finished = fit_over_network(recipe, list(NAMES), transport, tmp_path / "run", QUICK)
    assert_same(finished, FederatedGaussianMixture(**SMALL, missing="em").fit(rows), ("weights_", "center_"))


@pytest.mark.slow
def test_float32_is_float32_on_the_wire_and_close_to_the_in_process_answer(tmp_path):
    finished = over_network(tmp_path, gaussian(dtype="float32"))
    assert finished.result.theta.dtype == np.float32
    assert finished.result.cost["bytes_received_per_round_and_site"] == 4 * (2 + 4 + 2 + 1 + 1)
    np.testing.assert_allclose(
        finished.result.theta, in_process(gaussian(dtype="float32")).means_, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("name", POOLED)
def test_algorithms_that_pool_rows_are_refused(name):
    with pytest.raises(
        InputError, match=f"'{name}' puts the rows of all sites in one pot, and over a network rows stay"
    ):
        recipe_for(gaussian(algorithm=name))


def test_functions_of_a_user_do_not_travel():
    model = FederatedMixture(log_density=lambda x, t: -((x - t) ** 2).sum(), draw_start=lambda k, x: x.mean(axis=0))
    with pytest.raises(InputError, match="FederatedMixture holds functions of your own, and no code travels"):
        recipe_for(model)


def test_given_starts_are_refused():
    with pytest.raises(InputError, match="starts cannot be given to a fit over a network yet"):
        recipe_for(gaussian(means_init=np.zeros((3, 2, 2))))


# -- bad sites


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
    return answer._replace(fields=answer.fields | encode({"params": {"theta": np.full((2, 2), np.nan)}}))


def test_one_bad_answer_is_left_out_of_its_round_and_the_site_stays(tmp_path):
    spoil = spoil_rounds("north", with_nan, lambda n: n == 2)
    finished = over_network(tmp_path, gaussian(), spoil=spoil)
    (event,) = finished.about["events"]
    assert (event["site"], event["what"]) == ("north", "left out of this round")
    assert "site 'north' sent NaN or infinity in 4 of 4 number(s) of params.theta" in event["reason"]
    assert finished.about["out"] == {}
    movement = finished.result.history["movement"][:, NAMES.index("north")]
    assert [k for k, moved in enumerate(movement) if moved == 0.0] == [1], "it stayed where it was in round 2 only"
    assert np.all(np.isfinite(finished.result.theta))


def test_a_site_that_is_left_out_has_no_say_in_that_round(tmp_path):
    alone = over_network(tmp_path, gaussian(max_rounds=1), spoil=spoil_rounds("north", with_nan))
    others = [k for k, name in enumerate(NAMES) if name != "north"]
    start = read_checkpoint(tmp_path / "run", recipe_for(gaussian(max_rounds=1))).saved.starts.params
    np.testing.assert_array_equal(alone.result.theta[NAMES.index("north")], start.theta[NAMES.index("north")])
    # The others' round is the same whatever the spoilt site had sent.
    (tmp_path / "again").mkdir()
    far = spoil_rounds("north", lambda a: Answer(a.fields, a.exchange - 1))
    again = over_network(tmp_path / "again", gaussian(max_rounds=1), spoil=far)
    np.testing.assert_array_equal(alone.result.theta[others], again.result.theta[others])
    assert "answered exchange" in again.about["events"][0]["reason"]


def test_three_strikes_and_it_is_out_of_the_run(tmp_path):
    spoil = spoil_rounds("north", with_nan)
    recipe = recipe_for(gaussian())
    transport = AtHand(tmp_path, recipe, spoil=spoil)
    finished = fit_over_network(recipe, list(NAMES), transport, tmp_path / "run", QUICK)
    assert "3 bad answers, the last: site 'north' sent NaN" in finished.about["out"]["north"]
    asked = [exchange for site, task, exchange in transport.asked if (site, task) == ("north", STEP)]
    assert len(asked) == 3
    assert finished.result.site_names == NAMES, "its last parameters are kept"
    assert finished.result.n_rounds == 6


@pytest.mark.parametrize("name", FEDERATED)
def test_what_the_center_remembers_of_each_site_is_told_from_what_is_common(name):
    # Three sites, three components, three columns: lengths alone could not tell.
    algorithm = Recipe("gaussian", name, 3).build_algorithm()
    params = Params(jnp.full((3, 3), 1 / 3), jnp.zeros((3, 3, 3)))
    central = algorithm.central_start(params, jnp.ones(3))
    found = has_site_axis(algorithm, central)
    assert found.params == Params(True, True)
    assert (found.n_rows, found.first_weights, found.center, found.penalty) == (True, True, False, False)
    expected = {"fedem-sa": {"control"}, "tgmm": {"number", "theta"}}
    own = {field for field, per_site in zip(getattr(found.extra, "_fields", ()), found.extra, strict=True) if per_site}
    assert own == expected.get(name, {"pulled"} if name == "fedgrem" else set())


@pytest.mark.parametrize("algorithm", ["fedgrem", "fedem-sa"])
def test_a_site_that_misses_every_round_keeps_its_start_and_the_others_go_on(tmp_path, algorithm):
    def quiet(site, task, exchange, answer):
        return Answer(None, trouble="TIMEOUT") if site == "north" and task in (STEP, *AFTER_TASKS) else answer

    options = {"algorithm": algorithm, "max_rounds": 3}
    finished = over_network(tmp_path, gaussian(**options), spoil=quiet)
    assert finished.about["away"] == ["north"]
    start = np.asarray(read_checkpoint(tmp_path / "run", recipe_for(gaussian(**options))).saved.starts.params.theta)
    moved = np.abs(finished.result.theta - start).max(axis=(1, 2))
    assert moved[NAMES.index("north")] == 0.0
    assert np.all(moved[[NAMES.index("east"), NAMES.index("south")]] > 0.0)


def test_a_site_past_its_deadline_is_skipped_and_may_come_back(tmp_path):
    spoil = spoil_rounds("south", lambda a: Answer(None, trouble="TIMEOUT"), lambda n: n < 25)
    finished = over_network(tmp_path, gaussian(max_rounds=12), spoil=spoil)
    told = [(event["site"], event["what"]) for event in finished.about["events"]]
    assert told == [("south", "away"), ("south", "back")]
    assert "no answer within the deadline (TIMEOUT)" in finished.about["events"][0]["reason"]
    movement = finished.result.history["movement"][:, NAMES.index("south")]
    assert movement[0] == 0.0
    assert movement[-1] > 0.0
    assert finished.about["away"] == []


def test_a_site_that_declines_is_skipped_with_its_reason(tmp_path):
    spoil = spoil_rounds("south", lambda a: Answer(None, a.exchange, "floor"), lambda n: n > 1)
    finished = over_network(tmp_path, gaussian(), spoil=spoil)
    (event,) = finished.about["events"]
    assert event["reason"] == "it does not answer: a component holds fewer of its rows than the floor it has set"


def test_a_reason_of_a_sites_own_making_is_not_passed_on(tmp_path):
    spoil = spoil_rounds("south", lambda a: Answer(None, a.exchange, "<b>row 7: 42</b>"))
    finished = over_network(tmp_path, gaussian(), spoil=spoil)
    assert finished.about["events"][0]["reason"] == "it does not answer: for a reason of its own"


@pytest.mark.parametrize("task", [CENSUS, "local_start", "local_compare"])
def test_a_site_lost_before_round_1_is_as_if_it_had_never_been_there(tmp_path, task):
    def lose(site, now, exchange, answer):
        return Answer(None, trouble="TIMEOUT") if site == "north" and now == task else answer

    finished = over_network(tmp_path, gaussian(), spoil=lose)
    assert "no answer within the deadline" in finished.about["out"]["north"]
    rest = tuple(name for name in NAMES if name != "north")
    assert_same(finished, in_process(gaussian(), rest))


def test_a_site_with_other_columns_takes_no_part(tmp_path):
    def rename(site, task, exchange, answer):
        if site != "east" or task != CENSUS:
            return answer
        return answer._replace(fields=answer.fields | encode({"names": write_names(["x1", "x0"])}))

    finished = over_network(tmp_path, gaussian(), spoil=rename)
    assert finished.about["out"] == {"east": "its columns are x1, x0, and those of most sites x0, x1"}
    assert finished.result.site_names == ("north", "south")


def test_a_site_with_another_number_of_columns_takes_no_part(tmp_path):
    def widen(site, task, exchange, answer):
        if site != "east" or task != CENSUS:
            return answer
        return answer._replace(fields=answer.fields | encode({"mean": np.ones(9)}))

    finished = over_network(tmp_path, gaussian(), spoil=widen)
    assert finished.about["out"] == {"east": "site 'east' has mean of shape (9,), expected (2,)."}


@pytest.mark.parametrize(
    "fields",
    [{}, {"mean": 3}, {"mean": {"shape": 7, "dtype": "<f8", "bytes": b""}}, {"mean": {"shape": [10**12]}}, {1: 2}],
)
def test_nonsense_from_one_site_does_not_stop_the_others(tmp_path, fields):
    def babble(site, task, exchange, answer):
        return Answer(fields, exchange) if site == "east" else answer

    finished = over_network(tmp_path, gaussian(max_rounds=1), spoil=babble)
    assert finished.result.site_names == ("north", "south")
    assert "site 'east'" in finished.about["out"]["east"]


def test_a_column_that_is_constant_everywhere_is_refused_by_name(tmp_path):
    def flatten(site, task, exchange, answer):
        flat = encode({"mean": np.array([1.0, 0.0]), "deviation": np.array([0.0, 1.0])})
        return answer._replace(fields=answer.fields | flat) if task == CENSUS else answer

    with pytest.raises(InputError, match="column 'x0' is constant at every site and carries no information"):
        over_network(tmp_path, gaussian(), spoil=flatten)


# -- pausing and resuming


def test_below_the_quorum_the_run_pauses_checkpoints_and_says_why(tmp_path):
    def quiet(site, task, exchange, answer):
        return Answer(None, trouble="TIMEOUT") if site != "east" and task == STEP and exchange > 6 else answer

    with pytest.raises(PausedError) as paused:
        over_network(tmp_path, gaussian(), spoil=quiet)
    assert "paused: 1 of 3 site(s) answered, and min_sites is 2" in str(paused.value)
    assert "north: no answer within the deadline (TIMEOUT)" in str(paused.value)
    assert int(read_checkpoint(tmp_path / "run", recipe_for(gaussian())).saved.state.round) > 0
    assert not (tmp_path / "run" / RESULT).exists()


def test_after_a_pause_everybody_is_waited_for_again(tmp_path):
    quiet = {"north", "south"}

    def pause(site, task, exchange, answer):
        return Answer(None, trouble="TIMEOUT") if site in quiet and task == STEP and exchange > 6 else answer

    recipe = recipe_for(gaussian())
    with pytest.raises(PausedError):
        over_network(tmp_path, gaussian(), spoil=pause)
    resumed = fit_over_network(recipe, list(NAMES), AtHand(tmp_path, recipe), tmp_path / "run", QUICK)
    assert resumed.about["away"] == []
    assert_same(resumed, in_process(gaussian()))


def test_a_run_that_paused_before_round_1_begins_again_with_every_site(tmp_path):
    def nobody(site, task, exchange, answer):
        return Answer(None, trouble="TIMEOUT") if site != "east" else answer

    with pytest.raises(PausedError, match=r"paused: 1 of 3 site\(s\) answered"):
        over_network(tmp_path, gaussian(), spoil=nobody)
    resumed = over_network(tmp_path, gaussian())
    assert resumed.result.site_names == NAMES
    assert_same(resumed, in_process(gaussian()))


def test_a_chosen_penalty_is_the_in_process_one_and_survives_a_crash(tmp_path):
    options = {"penalty": "auto", "max_rounds": 3}
    expected = in_process(gaussian(**options))
    finished = over_network(tmp_path, gaussian(**options))
    model = assert_same(finished, expected)
    assert model.penalty_ == expected.penalty_
    np.testing.assert_allclose(model.penalty_path_["site_gain"], expected.penalty_path_["site_gain"], atol=1e-10)
    cost = finished.result.cost
    assert cost["exchanges"] == 1 + cost["start_exchanges"] + cost["penalty_exchanges"] + cost["rounds"] + 1
    saved = read_checkpoint(tmp_path / "run", recipe_for(gaussian(**options))).saved
    assert saved.choice.penalty == expected.penalty_
    np.testing.assert_array_equal(saved.choice.site_gain, model.penalty_path_["site_gain"])


class CrashError(RuntimeError):
    """Stands for the machine going down."""


@pytest.mark.parametrize(("algorithm", "after"), [("fedgrem", "local_start"), ("fedgrem", 4), ("fedem-sa", 1)])
def test_after_a_crash_it_goes_on_to_the_same_answer_bit_for_bit(tmp_path, algorithm, after):
    model = gaussian(algorithm=algorithm)
    whole = over_network(tmp_path, model)
    folder = tmp_path / "crashed"
    folder.mkdir()
    rounds = []

    def crash(site, task, exchange, answer):
        rounds.extend([exchange] if task == STEP and exchange not in rounds else [])
        if task == after or (task == STEP and len(rounds) > after if isinstance(after, int) else False):
            raise CrashError
        return answer

    with pytest.raises(CrashError):
        over_network(folder, model, spoil=crash)
    transport_asked = AtHand(folder, recipe_for(model))
    resumed = fit_over_network(recipe_for(model), list(NAMES), transport_asked, folder / "run", QUICK)
    asked = {task for _, task, _ in transport_asked.asked}
    assert asked == {STEP, LOOK} | (set() if isinstance(after, int) else {CENSUS, "local_start", "local_compare"})
    for name in ("weights", "theta", "center", "distance"):
        np.testing.assert_array_equal(getattr(resumed.result, name), getattr(whole.result, name))
    for name, kept in whole.result.history.items():
        np.testing.assert_array_equal(resumed.result.history[name], kept)
    assert resumed.result.n_rounds == whole.result.n_rounds


def test_a_checkpoint_of_another_fit_is_not_gone_on_with(tmp_path):
    over_network(tmp_path, gaussian(max_rounds=1))
    with pytest.raises(ModelFileError, match=r"checkpoint.npz is of another fit"):
        over_network(tmp_path, gaussian(max_rounds=2))


def test_a_damaged_checkpoint_is_named(tmp_path):
    over_network(tmp_path, gaussian(max_rounds=1))
    path = tmp_path / "run" / CHECKPOINT
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ModelFileError, match=r"checkpoint.npz cannot be read"):
        over_network(tmp_path, gaussian(max_rounds=1))


def test_a_result_comes_back_from_disk_as_it_was(tmp_path):
    finished = over_network(tmp_path, tied())
    assert_same(finished, in_process(tied()))
    stored = read_result(tmp_path / "run")
    assert stored.about == finished.about
    assert stored.result.cost == finished.result.cost
    np.testing.assert_array_equal(stored.result.theta, finished.result.theta)
    np.testing.assert_array_equal(stored.units.scale, finished.units.scale)
    assert stored.result.history.keys() == finished.result.history.keys()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"family": "custom"}, "has family='custom', expected one of gaussian, regression"),
        ({"algorithm": "os.system"}, "has algorithm='os.system', expected one of fedgrem"),
        ({"algorithm": "pooled-em"}, "puts the rows of all sites in one pot"),
        ({"n_components": 10**9}, "n_components=1000000000, expected a whole number up to 1000"),
        ({"seed": "1; rm"}, "has seed='1; rm', expected a number"),
        ({"path": "evil.Evil"}, "the recipe names path, which this fedgrem does not know"),
        ({"start": {"n_components": 3}}, "the recipe's start hold n_components"),
        ({"family_options": {"log_density": 3}}, "the recipe's family_options hold log_density"),
        ({"start": [1]}, "the recipe's start are not a mapping"),
        ({"columns": "age"}, "columns are not a list of names"),
    ],
)
def test_a_recipe_that_is_not_one_is_refused_by_name(change, message):
    plain = Recipe("gaussian", "fedgrem", 2).as_plain()
    assert read_recipe(plain) == Recipe("gaussian", "fedgrem", 2)
    with pytest.raises(InputError, match=message):
        read_recipe(plain | change)
