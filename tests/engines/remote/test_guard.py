import json

import numpy as np
import pytest

from fedgrem.engines.remote.declaration import CENSUS, HELLO, STEP
from fedgrem.engines.remote.guard import Guard, read_log
from fedgrem.engines.remote.site import DeclinedError, SiteAtWork
from fedgrem.engines.remote.wire import encode
from fedgrem.errors import InputError
from fedgrem.fit.tasks import PathReply
from fedgrem.types import Params, Upload, map_arrays
from tests.engines.remote.studies import fields, spec_of, write_site

SPEC = spec_of()
UPLOAD = Upload(Params(np.array([0.1, 0.9]), np.arange(4.0).reshape(2, 2)), np.ones(2), np.array(40.0), np.array(-3.0))


@pytest.fixture
def guarded(tmp_path):
    def make(**settings):
        return Guard(write_site(tmp_path, "north", **settings), SPEC, tmp_path / "sent.jsonl")

    return make


def let_out(guard, reply, task=STEP):
    return guard.release(task, reply, job="job-1", exchange=4)


def test_every_number_that_leaves_is_in_the_log(guarded, tmp_path):
    let_out(guarded(), encode(UPLOAD))
    (line,) = read_log(tmp_path / "sent.jsonl")
    assert line["job"] == "job-1"
    assert (line["exchange"], line["task"], line["bytes"]) == (4, STEP, 8 * (2 + 4 + 2 + 1 + 1))
    assert line["sent"] == {
        "params.weights": [0.1, 0.9],
        "params.theta": [[0.0, 1.0], [2.0, 3.0]],
        "step_scale": [1.0, 1.0],
        "n_rows": 40.0,
        "log_likelihood": -3.0,
    }


def test_the_log_is_only_ever_added_to(guarded, tmp_path):
    for _ in range(3):
        before = (tmp_path / "sent.jsonl").read_bytes() if (tmp_path / "sent.jsonl").exists() else b""
        let_out(guarded(), encode(UPLOAD))
        assert (tmp_path / "sent.jsonl").read_bytes().startswith(before)
    assert len(list(read_log(tmp_path / "sent.jsonl"))) == 3
    assert (tmp_path / "sent.jsonl").stat().st_mode & 0o077 == 0, "for the site's own eyes"


@pytest.mark.parametrize(
    ("reply", "task", "message"),
    [
        (encode(UPLOAD) | fields(rows=np.ones((40, 2))), STEP, "also holds rows"),
        (encode(UPLOAD._replace(step_scale=np.ones(40))), STEP, r"step_scale of shape \(40,\), expected \(2,\)"),
        (encode(UPLOAD._replace(n_rows=np.array(40))), STEP, "n_rows of type int64, expected float64"),
        (encode(UPLOAD), "start", "lacks choice and also holds step_scale"),
        (encode(UPLOAD), "send_rows", "there is no task 'send_rows'"),
    ],
)
def test_what_was_not_declared_does_not_leave_and_is_not_logged(guarded, tmp_path, reply, task, message):
    with pytest.raises(DeclinedError, match=message) as declined:
        let_out(guarded(), reply, task)
    assert declined.value.code == "guard"
    assert not (tmp_path / "sent.jsonl").exists()


def test_a_message_above_the_cap_does_not_leave(guarded):
    with pytest.raises(DeclinedError, match="the reply has 80 bytes, and at most 79 may leave"):
        let_out(guarded(cap=79), encode(UPLOAD))
    let_out(guarded(cap=80), encode(UPLOAD))


def test_a_component_below_the_floor_does_not_leave(guarded):
    with pytest.raises(DeclinedError, match="a component holds 4 rows, and the floor is 5") as declined:
        let_out(guarded(floor=5.0), encode(UPLOAD))
    assert declined.value.code == "floor"
    let_out(guarded(floor=4.0), encode(UPLOAD))


def test_the_floor_holds_for_every_fit_of_a_path(guarded):
    fits = map_arrays(lambda leaf: np.broadcast_to(leaf, (2, 2, *leaf.shape)).copy(), UPLOAD)
    fits = fits._replace(n_rows=np.array([20.0, 30.0]))
    reply = encode(PathReply(fits, np.array(40.0)))
    with pytest.raises(DeclinedError, match="a component holds 2 rows, and the floor is 3"):
        let_out(guarded(floor=3.0), reply, "path_step")
    assert let_out(guarded(floor=2.0), reply, "path_step") == reply


def test_names_in_the_first_report_are_those_of_the_columns(guarded, tmp_path):
    settings = write_site(tmp_path, "north")
    census = SiteAtWork("north", settings, SPEC).answer(CENSUS, encode(HELLO))
    let_out(guarded(), encode(census), CENSUS)
    smuggled = census.names.copy()
    smuggled[0, 10:20] = 65
    with pytest.raises(DeclinedError, match="names in the reply are not those of the site's columns"):
        let_out(guarded(), encode(census._replace(names=smuggled)), CENSUS)
    (line,) = read_log(tmp_path / "sent.jsonl")
    assert line["sent"]["names"] == ["x0", "x1"]


def test_a_log_that_was_tampered_with_is_named(tmp_path):
    (tmp_path / "sent.jsonl").write_text(json.dumps({"task": STEP}) + "\nnonsense\n")
    with pytest.raises(InputError, match=r"line 2 of .*sent.jsonl is not what the guard wrote"):
        list(read_log(tmp_path / "sent.jsonl"))
