"""Secure sums with sites elsewhere: the same center, lost sites, resumed runs, what a site's log says and refuses."""

import json
import stat
from dataclasses import replace
from functools import partial

import numpy as np
import polars as pl
import pytest

from fedgrem import FederatedGaussianMixture, FederatedRegressionMixture
from fedgrem.engines.remote.account import pages
from fedgrem.engines.remote.declaration import HELLO, Declaration, Order, check_over_network
from fedgrem.engines.remote.engine import Answer
from fedgrem.engines.remote.floor import PARTS
from fedgrem.engines.remote.log import read_log
from fedgrem.engines.remote.roster import Rules
from fedgrem.engines.remote.run import fit_over_network, replay
from fedgrem.engines.remote.site import DeclinedError
from fedgrem.engines.remote.sums import OWN, SECRET, SumCourse, check_content, secret_in, secret_of_fit
from fedgrem.engines.remote.wire import decode, digest_of, encode, pack, unpack
from fedgrem.errors import InputError, MessageError, PausedError
from fedgrem.estimators.fitted import UnknownSiteWarning
from fedgrem.estimators.network import adopt, spec_for
from fedgrem.fit.sums_site import KEYS, SUM_TASKS, Common, GuessSums, Middle, SumOrder, link, unpacked
from fedgrem.kernels.masks import derive, mask, public_key
from fedgrem.types import map_arrays
from tests.engines.remote.studies import AtHand, guard_of, rows_of, write_site
from tests.engines.remote.test_engine import assert_identical, journal_of
from tests.engines.remote.test_journal import CrashError, crash_at

NAMES = ("east", "north", "south", "west")
QUICK = Rules(min_sites=3, deadline=0.3, patience=0.0)
OPTIONS = {"n_components": 2, "covariance_type": "identity", "penalty": 2.0, "max_rounds": 3, "tol": 0.0}
MODEL = FederatedGaussianMixture(**OPTIONS, secure_sums=True, random_state=0)


def sites_at_hand(folder, model=MODEL, names=NAMES, **more):
    """Sites that keep a secret in a folder of their own, as their kits do."""
    spec = spec_for(model)
    transport = AtHand(folder, spec, names, **more)
    for name, guard in transport.guards.items():
        (folder / name).mkdir(exist_ok=True)
        guard._site._secret = secret_of_fit(secret_in(folder / name), "run-1")
        guard._site._keep = folder / name / OWN
    return transport, spec


def over_network(folder, model=MODEL, names=NAMES, rules=QUICK, **more):
    transport, spec = sites_at_hand(folder, model, names, **more)
    return fit_over_network(spec, list(names), transport, folder / "run", rules)


def in_process(model, names=NAMES):
    rows = {name: rows_of(name) for name in names}
    explains = isinstance(model, FederatedRegressionMixture)
    return model.fit({n: x for n, (x, _) in rows.items()}, {n: y for n, (_, y) in rows.items()} if explains else None)


def silent(*where):
    """Loses a site in given exchanges: it adds what nobody hears."""

    def spoil(site, task, exchange, answer):
        return Answer(None, trouble="TIMEOUT") if (exchange, site) in where else answer

    return spoil


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return over_network(folder), folder


# -- the same center


@pytest.mark.parametrize(
    "model",
    [
        MODEL,
        FederatedGaussianMixture(2, max_rounds=40, tol=1e-5, secure_sums=True, random_state=1),
        FederatedRegressionMixture(2, penalty=2.0, max_rounds=3, tol=0.0, secure_sums=True, random_state=1),
    ],
    ids=["identity", "tied, the penalty chosen", "regression"],
)
def test_the_center_is_that_of_the_fit_in_process(tmp_path, model):
    finished = over_network(tmp_path, model)
    assert finished.about["events"] == []
    assert finished.about["n_rows"] == {}, "nobody says how many rows it has"
    found = adopt(type(model)(**model.get_params(deep=False)), finished, None)
    expected = in_process(type(model)(**model.get_params(deep=False)))
    np.testing.assert_allclose(found.center_, expected.center_, rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.center_weights_, expected.center_weights_, rtol=0, atol=1e-9)
    assert found.penalty_ == expected.penalty_
    assert found.history_["passes"].max() <= 5
    assert np.isnan(found.weights_).all()


def test_what_is_known_of_the_model_at_the_center(whole):
    model = adopt(FederatedGaussianMixture(**OPTIONS, secure_sums=True), whole[0], ["a", "b"])
    assert "What they found stayed with them" in " ".join(model.summary().split())
    assert "What they found stayed with them" in model._repr_html_inner()
    assert set(model.site_verdict_) == {"not judged"}
    rows = dict(zip("ab", rows_of("east")[0].T, strict=True))
    with pytest.warns(UnknownSiteWarning, match="east found stayed with them"):
        told = model.predict(pl.DataFrame(rows), sites="east")
    with pytest.warns(UnknownSiteWarning, match="the common center is used"):
        np.testing.assert_array_equal(told, model.predict(pl.DataFrame(rows)))
    with pytest.raises(InputError, match="what site 'east' found stayed there"):
        model.sample(3, site="east")
    with pytest.raises(InputError, match="the page is about sites"):
        model.report("page.html")
    with pytest.raises(InputError, match="cannot join a fit from secure sums"):
        model.fit_site(rows_of("west")[0], name="new")
    from fedgrem.report.summary import summarize

    assert json.loads(json.dumps(summarize(model).as_plain(), allow_nan=False))["sites"][0] == {"name": "east"}


# -- lost sites


def test_a_site_lost_in_any_exchange_is_out_of_the_fit_and_the_others_go_on(tmp_path, whole):
    asked = [record.about["task"] for record in journal_of(whole[1])]
    places = [k for k, task in enumerate(asked, 1) if task != "sum_guess" or asked[k - 2] != task]
    tasks = set()
    for exchange in places:  # of the starts, which are alike, only the first
        folder = tmp_path / str(exchange)
        folder.mkdir()
        lost = NAMES[exchange % 4]
        finished = over_network(folder, spoil=silent((exchange, lost)))
        assert np.isfinite(finished.result.center).all()
        assert "TIMEOUT" in finished.about["out"][lost]
        records = [record.about for record in journal_of(folder)]
        tasks.add(records[exchange - 1]["task"])
        assert all(lost not in record["sites"] for record in records[exchange - 1 :])
        refused = [r for name in NAMES for r in read_log(folder / f"{name}.jsonl") if r["kind"] == "refusal"]
        assert refused == [], "no site minds that another one is lost"
    assert tasks == set(SUM_TASKS) - {"sum_gain"}


def test_with_too_few_for_a_sum_the_fit_pauses_and_goes_on_with_all_of_them(tmp_path, whole):
    gone = [(30, "east"), (30, "west")]
    with pytest.raises(PausedError, match=r"2 of 4 .* answered, and min_sites is 3 .east: no answer"):
        over_network(tmp_path, spoil=silent(*gone))
    resumed = over_network(tmp_path)
    assert resumed.about["out"] == {}
    np.testing.assert_allclose(resumed.result.center, whole[0].result.center, rtol=0, atol=1e-9)


def test_fewer_than_three_sites_are_refused_at_once(tmp_path):
    with pytest.raises(InputError, match="at least 3 sites, and there are 2"):
        over_network(tmp_path, names=NAMES[:2])


def test_a_reply_that_is_no_sum_is_named_and_the_site_is_out(tmp_path):
    bad = {
        20: lambda fields: fields | {"masked": pack(np.zeros(3, dtype=np.int64))},
        21: lambda fields: fields | {"masked": pack(np.zeros(1 + len(fields["masked"]["bytes"]) // 8))},
    }

    def spoil(site, task, exchange, answer):
        if site == "north" and exchange in bad:
            return answer._replace(fields=bad[exchange](answer.fields))
        return answer

    finished = over_network(tmp_path, spoil=spoil)
    assert "site 'north' has masked of shape (3,), expected" in finished.about["out"]["north"]


def test_a_key_with_which_nobody_can_share_a_secret_is_refused_by_name(tmp_path):
    def spoil(site, task, exchange, answer):
        if (site, task) == ("north", KEYS):
            return answer._replace(fields=answer.fields | {"key": pack(np.zeros(32, dtype=np.uint8))})
        return answer

    finished = over_network(tmp_path, spoil=spoil)
    assert finished.about["out"]["north"] == "site 'north' sent a public key that is none."
    assert finished.result.site_names == ("east", "south", "west")


# -- the journal


@pytest.mark.parametrize("number", [1, 2, 8, 26, 31])
def test_after_a_crash_the_center_is_the_same_bit_for_bit(tmp_path, whole, number):
    expected = whole[0].result
    assert number < expected.cost["exchanges"]
    with pytest.raises(CrashError):
        over_network(tmp_path, spoil=crash_at(number))
    transport, spec = sites_at_hand(tmp_path)  # new workers, whose kits have their secrets
    resumed = fit_over_network(spec, list(NAMES), transport, tmp_path / "run", QUICK)
    # Masks are others in another run, and cancel to the bit.
    assert_identical(resumed.result, expected)
    assert min(exchange for _, _, exchange in transport.asked) == number


def test_a_torn_journal_is_asked_again_and_answered_alike(tmp_path, whole):
    over_network(tmp_path)
    before = [record.fields for record in journal_of(tmp_path)]
    path = tmp_path / "run" / "journal"
    path.write_bytes(path.read_bytes()[:-200])
    resumed = over_network(tmp_path)
    assert_identical(resumed.result, whole[0].result)
    assert [record.fields for record in journal_of(tmp_path)] == before


def test_a_run_is_replayed_from_its_journal_alone(whole):
    played = replay(whole[1] / "run" / "journal")
    assert played.differs == []
    assert played.as_kept is True


def test_a_worker_that_has_lost_its_secret_is_out_and_the_fit_goes_on(tmp_path):
    with pytest.raises(CrashError):
        over_network(tmp_path, spoil=crash_at(30))
    (tmp_path / "north" / SECRET).unlink()
    resumed = over_network(tmp_path)
    assert set(resumed.about["out"]) == {"north"}


# -- what the site has of it


def test_the_log_says_what_was_asked_and_that_what_left_was_masked(whole):
    records = list(read_log(whole[1] / "north.jsonl"))
    (page,) = pages(records)
    assert page.numbers == 32 + 1 + 2, "a key, how many columns, and their names"
    assert page.masked > 1000
    assert [one["sent"] for one in records if one["kind"] == "reply"][1:] == [{}] * (len(records) // 2 - 1)
    assert all(one["masked"] for one in records if one["kind"] == "reply" and one["task"] != KEYS)
    asked = next(one["asked"] for one in records if one["kind"] == "order" and one["task"] == "sum_pass")
    assert len(asked["content.at.theta"]) == 2, "content is there in numbers"
    assert asked["here"] == [True] * 4
    others = {pages(list(read_log(whole[1] / f"{name}.jsonl")))[0].keys for name in NAMES}
    assert others == {page.keys}, "sites can compare them"


@pytest.mark.parametrize(
    "model",
    [
        MODEL,
        FederatedGaussianMixture(2, penalty=2.0, max_rounds=3, tol=0.0, secure_sums=True, random_state=1),
        FederatedRegressionMixture(2, penalty=2.0, max_rounds=3, tol=0.0, secure_sums=True, random_state=1),
    ],
    ids=["identity", "tied", "regression"],
)
def test_a_site_keeps_what_it_found_for_itself_in_the_units_of_its_columns(tmp_path, model):
    over_network(tmp_path, model)
    expected = in_process(model)
    names = {"weights": "weights_", "means": "means_", "covariances": "covariances_"}
    if isinstance(model, FederatedRegressionMixture):
        names = {"weights": "weights_", "coef": "coef_", "intercept": "intercept_", "noise": "noise_"}
    for k, name in enumerate(NAMES):
        path = tmp_path / name / OWN
        found = json.loads(path.read_text())
        assert found.pop("columns")[:2] == ["x0", "x1"]
        assert found.keys() == names.keys()
        for told, value in found.items():
            wanted = getattr(expected, names[told])[k]
            np.testing.assert_allclose(value, np.broadcast_to(wanted, np.shape(value)), rtol=1e-9, atol=1e-9)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_secret_is_made_once_for_its_owner_and_hangs_on_the_fit(tmp_path):
    secret = secret_in(tmp_path)
    assert secret_in(tmp_path) == secret
    assert stat.S_IMODE((tmp_path / SECRET).stat().st_mode) == 0o600
    assert len(list(tmp_path.iterdir())) == 1
    made = {secret_of_fit(secret, *what) for what in (("run-1",), ("run-2",), ("run-1", "north"))}
    assert len(made | {secret}) == 4
    (tmp_path / SECRET).write_bytes(b"short")
    with pytest.raises(InputError, match="has 5 bytes, expected 32; delete it"):
        secret_in(tmp_path)


# -- a center that is too curious


SPEC = spec_for(MODEL)
SECRETS = [derive(bytes([k]) * 32, b"test") for k in range(4)]


class Curious:
    """Asks one site, the first of four whose other keys it has made itself."""

    def __init__(self, folder, spec=SPEC, **settings):
        self.settings = write_site(folder, "north", **settings)
        self.guard, self.exchange = guard_of(self.settings, spec, folder / "guard.jsonl"), 0
        self.declaration = Declaration(spec, 2)
        key = decode(self.say(KEYS, HELLO), self.declaration.forms(KEYS)[0].reply).key
        self.keys = np.stack([key, *(np.frombuffer(public_key(s), dtype=np.uint8) for s in SECRETS[1:])])

    def say(self, task, order):
        self.exchange += 1
        return self.guard.answer(task, encode(order), exchange=self.exchange)

    def ask(self, task="sum_middle", *, shift=0.0, **options):
        content = self.content(task, 4)
        if isinstance(content, Middle):
            content = Middle(content.center + shift, content.limit + 1.0)
        return self.say(task, self.order(task, content=content, **options))

    def content(self, task, n_sites):
        form = self.declaration.forms(task, n_sites)[0].order
        return map_arrays(lambda leaf: np.zeros(leaf.shape, leaf.dtype), form.mail.common.content)

    def order(self, task, *, content, here=(1, 1, 1, 1), keys=None):
        form = self.declaration.forms(task, len(here))[0].order
        keys = self.keys if keys is None else keys
        common = Common(keys[: len(here)], np.array(here, dtype=bool), np.zeros(32, dtype=np.uint8), content)
        units = map_arrays(lambda leaf: np.zeros(leaf.shape), form.units)
        sealed = None if form.mail.sealed is None else np.zeros(form.mail.sealed.shape, dtype=np.uint8)
        return Order(SumOrder(common, np.asarray(0), sealed), units, np.asarray(False))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"here": (1, 1, 0, 0)}, "a sum over 2 sites"),
        ({"here": (0, 1, 1, 1)}, "its own public key is not in its place"),
        ({"task": "sum_pass"}, "it is not the turn of 'sum_pass'; before it came 'sum_keys'"),
        ({"task": "census"}, "there is no task 'census' in this fit"),
        ({"task": "step"}, "there is no task 'step' in this fit"),
    ],
)
def test_what_would_show_a_single_site_is_refused(tmp_path, options, why):
    center = Curious(tmp_path)
    task = options.get("task")
    asked = partial(center.say, task, HELLO) if task in ("census", "step") else partial(center.ask, **options)
    with pytest.raises(DeclinedError, match=why) as refusal:
        asked()
    assert refusal.value.code == "order"
    assert list(read_log(tmp_path / "guard.jsonl"))[-1]["kind"] == "refusal"


def test_a_site_may_want_more_sites_in_a_sum_than_three(tmp_path):
    center = Curious(tmp_path, least_sites=4)
    center.ask()
    with pytest.raises(DeclinedError, match="a sum over 3 sites; this site wants 4"):
        center.ask(here=(1, 1, 1, 0))


def test_who_was_left_out_does_not_come_back_and_keys_stay(tmp_path):
    center = Curious(tmp_path)
    first = center.ask()
    assert center.ask() == first, "the same words, the same answer"
    assert center.ask(shift=1e-9) != first
    center.ask(here=(1, 1, 1, 0))
    with pytest.raises(DeclinedError, match="a site that was left out of one before"):
        center.ask(shift=2e-9)
    assert center.ask() == first
    other = center.keys.copy()
    other[1:3] = other[[2, 1]]
    with pytest.raises(DeclinedError, match="other keys of the sites"):
        center.ask(keys=other, here=(1, 1, 1, 0))


def opened(center, reply, task, order):
    """What the site has added, for a center that is all other sites as well."""
    masked = unpack("masked", reply["masked"]).view(np.uint64)
    purpose = link(task, order.mail.common) + digest_of(order._replace(mail=())).encode()
    for k in range(1, 4):  # what each of them would take away for its pair with the site
        here = np.array([j in (0, k) for j in range(4)])
        keys = [key.tobytes() for key in center.keys]
        masked = masked + mask(SECRETS[k], k, keys, here, purpose, len(masked))
    return masked.view(np.int64) * 2.0**-32


@pytest.mark.parametrize("floor", [1.0, 10.0])
def test_a_start_placed_on_a_record_shows_it_only_where_there_is_no_floor(tmp_path, floor):
    center = Curious(tmp_path, floor=floor)
    rows = pl.read_parquet(center.settings.data).select(center.settings.columns).to_numpy()
    record = rows[np.argmax(rows @ [1.0, 1.0])]  # by itself at the edge
    center.ask()
    guess = center.content("sum_guess", 4)
    others = rows[rows.sum(axis=1) > 0].mean(axis=0)
    near = np.stack([others, record + 0.5 * (record - others)])
    params = guess.params._replace(
        weights=np.full(guess.params.weights.shape, 0.5), theta=np.broadcast_to(near, guess.params.theta.shape).copy()
    )
    order = center.order("sum_guess", content=guess._replace(params=params, penalty=np.array(1e6), cap=np.array(1.0)))
    numbers = opened(center, center.say("sum_guess", order), "sum_guess", order)
    like = GuessSums(np.zeros(()), *[np.zeros(s) for s in ((16, 2), (16, 2, 2), (16, 2))], None, np.zeros(16))
    found = unpacked(numbers, like)
    assert found.say == 1.0
    moved = np.abs(found.slope[:, 1]).max()
    assert (moved > 0.1) if floor == 1.0 else (moved == 0.0 and found.weights[:, 1].max() < 1e-5)


def test_a_site_of_few_rows_takes_no_part(tmp_path):
    with pytest.raises(DeclinedError, match="with a floor of 30 these are enough for 1 component") as refusal:
        Curious(tmp_path, floor=30.0)
    assert refusal.value.code == "floor"


def test_a_fit_asks_as_often_as_it_needs_and_once_more_for_every_site_that_is_lost():
    course = SumCourse(SPEC)
    form = Declaration(SPEC, 2)

    def take(task, number=0, here=(1, 1, 1, 1)):
        order = map_arrays(lambda leaf: np.zeros(leaf.shape, leaf.dtype), form.forms(task, 4)[0].order)
        if task != KEYS:
            chain = np.frombuffer(number.to_bytes(32, "big"), dtype=np.uint8)
            common = order.mail.common._replace(here=np.array(here, dtype=bool), chain=chain)
            order = order._replace(mail=order.mail._replace(common=common))
        return course.take(task, order)

    take(KEYS)
    take("sum_middle")
    for number in range(20):
        take("sum_guess", number)
    with pytest.raises(MessageError, match="'sum_guess' was asked 20"):
        take("sum_guess", 20)
    take("sum_guess", 20, here=(1, 1, 1, 0))
    assert take("sum_guess", 3), "said before, it is said again"
    with pytest.raises(MessageError, match="not the turn of 'sum_round'"):
        take("sum_round", here=(1, 1, 1, 0))
    for task in ("sum_begin", "sum_round", "sum_pass", "sum_end"):
        take(task, here=(1, 1, 1, 0))
    with pytest.raises(MessageError, match="not the turn of 'sum_round'"):
        take("sum_round", 1, here=(1, 1, 1, 0))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"penalty": np.array(np.inf)}, ""),
        ({"penalty": np.array(-1.0)}, "penalty is negative"),
        ({"cap": np.array(np.nan)}, "cap is not finite"),
        ({"parts": np.array(3)}, "cuts the rows in 3 parts, expected 0, 2 or 4"),
        ({"steps": np.array(10**6)}, "wants 1000000 local steps"),
    ],
)
def test_numbers_that_no_fit_sends_are_refused(changes, why):
    form = Declaration(SPEC, 2).forms("sum_round")[0].order
    content = map_arrays(lambda leaf: np.zeros(leaf.shape, leaf.dtype), form.mail.common.content)
    steps = changes.get("steps", np.array(10))
    frame = content.next_frame._replace(**{name: value for name, value in changes.items() if name != "steps"})
    content = content._replace(next_frame=frame, steps=steps)
    order = form.mail._replace(common=form.mail.common._replace(content=content))
    if why:
        with pytest.raises(MessageError, match=why):
            check_content(order, PARTS)
    else:
        check_content(order, PARTS)


def test_what_cannot_be_found_from_sums_is_refused_before_any_site_is_asked():
    spec = replace(SPEC, penalty=0.0)
    with pytest.raises(InputError, match="nothing to sum"):
        check_over_network(spec)
