"""Sites that each run the fit by themselves and hear nobody but their neighbours: the same answer, to the bit."""

import queue
import threading
from dataclasses import replace
from multiprocessing import Pipe

import numpy as np
import pytest

from fedgrem.data.federation import Federation
from fedgrem.engines.decentralized import AmongNeighbours
from fedgrem.engines.remote.neighbours import Carrier, Connections, fit_at_one_site, read_letter, write_letter
from fedgrem.errors import InputError, SitesError
from fedgrem.kernels.gossip import Sent, lines_of, plan_of
from fedgrem.kernels.graphs import ring
from tests.conformance.families import GAUSSIAN
from tests.fit.test_sums import spec_of

DATA = GAUSSIAN.federation(1, (40, 30, 50, 45, 35))
NAMES = DATA.names


class Boxes:
    """One letter box for each direction of each link."""

    def __init__(self):
        self.of = {(one, other): queue.Queue() for one in NAMES for other in NAMES}

    def post(self, name, last=10**9):
        """The post of one site, which sends so many letters and then is gone."""
        boxes, count = self.of, iter(range(last))

        class Post:
            def send(self, neighbour, letter):
                if next(count, None) is None:
                    for other in NAMES:
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
