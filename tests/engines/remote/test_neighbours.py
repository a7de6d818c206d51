"""Sites that each run the fit by themselves and hear nobody but their neighbours: the same answer, to the bit."""

import queue
import threading
from dataclasses import replace
from multiprocessing import Pipe

import numpy as np
import pytest

from fedgrem.data.federation import Federation
from fedgrem.engines.decentralized import AmongNeighbours
from fedgrem.engines.remote.log import read_log
from fedgrem.engines.remote.neighbours import (
    Carrier,
    Connections,
    Guarded,
    fit_at_one_site,
    read_letter,
    write_letter,
)
from fedgrem.engines.remote.site import DeclinedError
from fedgrem.errors import InputError, SitesError
from fedgrem.fit.sums_site import Point
from fedgrem.kernels.gossip import Sent, lines_of, plan_of
from fedgrem.kernels.graphs import ring
from tests.conformance.families import GAUSSIAN
from tests.engines.remote.studies import NAMES as SITES
from tests.engines.remote.studies import guard_of, rows_of, write_site
from tests.fit.test_sums import spec_of

DATA = GAUSSIAN.federation(1, (40, 30, 50, 45, 35))
NAMES = DATA.names
SPEC = replace(spec_of(DATA, max_rounds=2, tol=0.0), secure_sums=False, given=None, columns=("x0", "x1"))


class Boxes:
    """One letter box for each direction of each link."""

    def __init__(self, names=NAMES):
        self.names, self.of = names, {(one, other): queue.Queue() for one in names for other in names}

    def post(self, name, last=10**9):
        """The post of one site, which sends so many letters and then is gone."""
        boxes, names, count = self.of, self.names, iter(range(last))

        class Post:
            def send(self, neighbour, letter):
                if next(count, None) is None:
                    for other in names:
                        boxes[name, other].put(None)
                    raise SystemExit
                boxes[name, neighbour].put(letter)

            def receive(self, neighbour, timeout):
                try:
                    letter = boxes[neighbour, name].get(timeout=timeout)
                except queue.Empty:
                    return None
                if letter is None:
                    boxes[neighbour, name].put(None)
                    raise EOFError
                return letter

        return Post()


def fit_everywhere(spec, last=None, **options):
    """The results of all sites, each of which runs in a thread and knows its own rows; or what stopped it."""
    boxes, found = Boxes(), {}

    def at(site):
        post = boxes.post(site.name, (last or {}).get(site.name, 10**9))
        try:
            found[site.name] = fit_at_one_site(
                Federation((site,), DATA.columns), spec, ring(len(NAMES)), NAMES, post, **options
            )
        except (SitesError, SystemExit) as error:
            found[site.name] = error

    threads = [threading.Thread(target=at, args=(site,)) for site in DATA.sites]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def spec_for():
    return replace(spec_of(DATA, max_rounds=3, tol=0.0), secure_sums=False)


def test_every_site_finds_the_answer_of_one_process_to_the_bit_and_of_others_knows_nothing():
    found, whole = fit_everywhere(spec_for()), AmongNeighbours(DATA, spec_for(), ring(5)).run()
    for k, name in enumerate(NAMES):
        np.testing.assert_array_equal(found[name].center, whole.center)
        np.testing.assert_array_equal(found[name].theta[k], whole.theta[k])
        np.testing.assert_allclose(found[name].influence.threshold[k], whole.influence.threshold[k])
        assert np.isnan(np.delete(found[name].theta, k, axis=0)).all()
        assert np.isnan(np.delete(found[name].n_rows, k)).all()
        assert found[name].cost["messages"] == whole.cost["messages"] / 5


def test_a_site_whose_process_ends_is_left_out_by_all_others_alike():
    found = fit_everywhere(spec_for(), {NAMES[2]: 500})
    assert isinstance(found[NAMES[2]], SystemExit)
    others = [found[name] for name in NAMES if name != NAMES[2]]
    for one in others:
        np.testing.assert_array_equal(one.center, others[0].center)
        assert one.cost["sites"] == 4
        assert np.isfinite(one.center).all()


def test_letters_larger_than_a_pipe_holds_go_both_ways_at_once():
    one, other = Pipe()
    here, there = Connections({"b": one}), Connections({"a": other})
    letter = bytes(2**20)
    for post, name in ((here, "b"), (there, "a")):
        post.send(name, letter)
        post.send(name, b"end")
    for post, name in ((here, "b"), (there, "a")):
        assert post.receive(name, 5.0) == letter
        assert post.receive(name, 5.0) == b"end"
        assert post.receive(name, 0.0) is None
    other.close()
    with pytest.raises(EOFError):
        here.receive("b", 0.1)


def test_a_silent_neighbour_is_waited_for_and_then_lost():
    boxes, spec = Boxes(), spec_for()
    lines = lines_of(plan_of(ring(5), 1e-6), np.array([0]))
    sent = Sent(np.ones((1, 2)), np.zeros(1, bool), np.zeros((1, 5), bool))
    carrier = Carrier(boxes.post(NAMES[0]), NAMES, patience=0.5)
    boxes.of[NAMES[1], NAMES[0]].put(write_letter(sent, 3))
    _, there = carrier(sent, lines, 3)
    assert there.tolist() == [True, False]
    assert boxes.of[NAMES[0], NAMES[1]].qsize() >= 2  # who is heard is told, meanwhile, that this site waits
    assert spec.n_components == 2


@pytest.mark.parametrize("letter", [b"", b"short", b"\0" * 400])
def test_a_letter_of_another_length_is_none(letter):
    sent = Sent(np.ones((1, 2)), np.zeros(1, bool), np.zeros((1, 5), bool))
    assert read_letter(letter, sent)[1] is None
    torn = write_letter(sent, 3)[:-1]
    assert read_letter(torn, sent) == (3, None)


def test_rows_of_no_site_of_the_study_are_refused():
    with pytest.raises(InputError, match="expected one site of the study"):
        fit_at_one_site(DATA, spec_for(), ring(5), NAMES, Boxes().post(NAMES[0]))


# -- behind the guards of real sites


def guarded(folder, post_of, **settings):
    """Three sites that fit at once; what came of each, or why nothing did."""
    told = {}

    def work(place, name):
        guard = guard_of(write_site(folder, name, **settings), SPEC, folder / f"{name}.jsonl", name=name)
        try:
            fit = Guarded(guard, ring(3), SITES, place, post_of(name), 1e-12)
            result = fit.run()
            told[name] = result, guard.release(Point(result.center, None), result.center)
        except DeclinedError as error:
            told[name] = error.code, str(error)

    threads = [threading.Thread(target=work, args=one) for one in enumerate(SITES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told


def test_guards_write_down_what_neighbours_are_sent_and_the_coordinator_gets_what_all_found(tmp_path):
    told = guarded(tmp_path, Boxes(SITES).post, neighbours=True)
    data = Federation.from_sites(SITES, [rows_of(name)[0] for name in SITES])
    expected = AmongNeighbours(data, replace(SPEC, columns=None), ring(3)).run()
    for name in SITES:
        result, fields = told[name]
        np.testing.assert_array_equal(result.center, expected.center)
        assert np.isnan(result.theta).all()
        assert list(fields) == ["theta"]
        records = list(read_log(tmp_path / f"{name}.jsonl"))
        assert records[0]["neighbours"] == [other for other in SITES if other != name]
        sums = [one for one in records if one["kind"] == "reply" and "added" in one["sent"]]
        assert {one["task"] for one in sums} >= {"sum_middle", "sum_guess", "sum_begin", "sum_round", "sum_end"}
        # Joint starts: what a site would move them by, never its rows.
        assert len({len(one["sent"]["added"]) for one in sums if one["task"] == "sum_round"}) == 1
        assert records[-1]["sent"]["center"] == expected.center.tolist()


def test_a_site_takes_part_only_if_it_said_so_and_once(tmp_path):
    told = guarded(tmp_path, Boxes(SITES).post)
    assert {code for code, _ in told.values()} == {"neighbours"}
    settings = write_site(tmp_path, "north", neighbours=True)
    guard_of(settings, SPEC, tmp_path / "log.jsonl").join(["east"])
    with pytest.raises(DeclinedError, match="has begun before, and cannot be taken up without a server"):
        guard_of(settings, SPEC, tmp_path / "log.jsonl").join(["south"])
    low = write_site(tmp_path, "east", neighbours=True, floor=30.0)
    with pytest.raises(DeclinedError, match="enough for 1 component"):
        guard_of(low, SPEC, tmp_path / "east.jsonl", name="east").join(["north"])
