"""Crashes at every exchange, torn and damaged journals: resuming is replaying, and the end is the same."""

import json
import shutil
from contextlib import closing

import pytest

from fedgrem.engines.remote.declaration import CENSUS, STEP
from fedgrem.engines.remote.delivery import Answer
from fedgrem.engines.remote.journal import HEAD, JOURNAL, MAGIC, Journal, Record, read_journal
from fedgrem.engines.remote.run import fit_over_network, replay
from fedgrem.errors import ModelFileError
from fedgrem.estimators.network import spec_for
from tests.engines.remote.studies import NAMES, AtHand, fields, spec_of
from tests.engines.remote.test_engine import QUICK, assert_identical, gaussian, journal_of, over_network

MODEL = {"penalty": "auto", "standard_errors": True, "max_rounds": 4}
SPEC = spec_of()


class CrashError(BaseException):
    """Stands for the machine going down."""


def crash_at(number, lose=None):
    """Lose a site at a task, if asked to, and go down at an exchange."""

    def spoil(site, task, exchange, answer):
        if exchange == number:
            raise CrashError
        return Answer(None, trouble="TIMEOUT") if (site, task) == lose else answer

    return spoil


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return over_network(folder, gaussian(**MODEL)), folder


def test_after_a_crash_at_any_exchange_the_model_is_the_same_bit_for_bit(tmp_path, whole):
    expected, _ = whole
    last = expected.result.cost["exchanges"]
    tasks = set()
    for number in range(1, last + 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(CrashError):
            over_network(folder, gaussian(**MODEL), spoil=crash_at(number))
        spec = spec_for(gaussian(**MODEL))
        transport = AtHand(folder, spec)
        resumed = fit_over_network(spec, list(NAMES), transport, folder / "run", QUICK)
        assert_identical(resumed.result, expected.result)
        assert resumed.result.cost["exchanges"] == last
        assert min(exchange for _, _, exchange in transport.asked) == number, "nothing was asked twice"
        tasks.add(transport.asked[0][1])
    assert tasks == {
        CENSUS,
        "start",
        "compare",
        "path_step",
        "path_score",
        "weights_score",
        STEP,
        "look",
        "information",
    }


@pytest.mark.parametrize("number", [3, 5, 8, 12])
def test_a_site_that_was_dropped_before_a_crash_stays_dropped(tmp_path, number):
    lose = ("north", "compare")
    (tmp_path / "whole").mkdir()
    expected = over_network(tmp_path / "whole", gaussian(), spoil=crash_at(-1, lose))
    with pytest.raises(CrashError):
        over_network(tmp_path, gaussian(), spoil=crash_at(number, lose))
    resumed = over_network(tmp_path, gaussian(), spoil=crash_at(-1, lose))
    assert resumed.result.site_names == ("east", "south")
    assert_identical(resumed.result, expected.result)
    assert resumed.about["out"] == expected.about["out"]


def test_who_is_out_after_strikes_stays_out(tmp_path):
    def spoil(site, task, exchange, answer):
        if exchange == 9:
            raise CrashError
        return Answer({}, exchange) if (site, task) == ("north", STEP) else answer

    with pytest.raises(CrashError):
        over_network(tmp_path, gaussian(max_rounds=8), spoil=spoil)
    spec = spec_for(gaussian(max_rounds=8))
    transport = AtHand(tmp_path, spec)
    resumed = fit_over_network(spec, list(NAMES), transport, tmp_path / "run", QUICK)
    assert "3 bad answers" in resumed.about["out"]["north"]
    assert {site for site, _, _ in transport.asked} == {"east", "south"}


def with_logs(folder, journal, tmp_path):
    """A run whose sites remember what they were asked."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / JOURNAL).write_bytes(journal)
    for name in NAMES:
        shutil.copy(folder / f"{name}.jsonl", tmp_path)


@pytest.mark.parametrize("cut", [1, 5, HEAD.size, HEAD.size + 1, 40])
def test_a_torn_last_record_is_not_read_and_the_end_is_the_same(tmp_path, whole, cut):
    expected, folder = whole
    raw = (folder / "run" / JOURNAL).read_bytes()
    with_logs(folder, raw[:-cut], tmp_path)
    resumed = over_network(tmp_path, gaussian(**MODEL))
    assert_identical(resumed.result, expected.result)
    # It was asked again, which took another time.
    assert [record.fields for record in journal_of(tmp_path)] == [record.fields for record in journal_of(folder)]


def test_a_last_record_of_the_right_length_with_the_wrong_bytes_is_torn_too(tmp_path, whole):
    expected, folder = whole
    raw = (folder / "run" / JOURNAL).read_bytes()
    with_logs(folder, raw[:-30] + bytes(30), tmp_path)
    assert len(list(read_journal(tmp_path / "run" / JOURNAL))) == len(list(read_journal(folder / "run" / JOURNAL))) - 1
    assert_identical(over_network(tmp_path, gaussian(**MODEL)).result, expected.result)


@pytest.mark.parametrize("length", [0, 5, len(MAGIC), len(MAGIC) + 3, len(MAGIC) + HEAD.size + 9])
def test_a_journal_without_a_whole_header_is_begun_anew(tmp_path, length):
    Journal(tmp_path, SPEC, ["a"]).close()
    raw = (tmp_path / JOURNAL).read_bytes()
    (tmp_path / JOURNAL).write_bytes(raw[:length])
    with closing(Journal(tmp_path, SPEC, ["a"])) as journal:
        assert journal.next() is None
    assert (tmp_path / JOURNAL).read_bytes() == raw


def test_records_come_back_in_order_and_are_only_added_to(tmp_path):
    records = [Record({"exchange": n, "task": STEP}, fields(a=[1.0 * n], b=[[n]])) for n in (1, 2, 3)]
    before = b""
    for k, record in enumerate(records):
        with closing(Journal(tmp_path, SPEC, ["a"])) as journal:
            assert [journal.next() for _ in range(k)] == records[:k]
            assert journal.next() is None
            journal.append(record)
        raw = (tmp_path / JOURNAL).read_bytes()
        assert raw.startswith(before)
        before = raw
    with closing(Journal(tmp_path, SPEC, ["a"])) as journal:
        assert journal.exchange == 3
    header, *rest = read_journal(tmp_path / JOURNAL)
    assert header.about == {"spec": json.loads(SPEC.to_json()), "sites": ["a"]}
    assert rest == records


@pytest.mark.parametrize("where", [0.2, 0.5, 0.9])
def test_after_damage_a_run_goes_on_from_the_last_good_record_to_the_same_end(tmp_path, whole, where):
    expected, folder = whole
    raw = bytearray((folder / "run" / JOURNAL).read_bytes())
    raw[int(where * len(raw))] ^= 1
    with_logs(folder, raw, tmp_path)
    with pytest.raises(ModelFileError, match=r"journal is damaged at byte \d+, before its end; restore it"):
        list(read_journal(tmp_path / "run" / JOURNAL))
    assert_identical(over_network(tmp_path, gaussian(**MODEL)).result, expected.result)
    assert (tmp_path / "run" / JOURNAL).with_suffix(".damaged").read_bytes() == raw, "kept"


def test_what_is_no_journal_is_named(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / JOURNAL).write_bytes(b"something else that is long enough")
    with pytest.raises(ModelFileError, match="journal cannot be read: it is no journal of this version"):
        over_network(tmp_path, gaussian())


def test_a_journal_of_another_fit_is_not_gone_on_with(tmp_path):
    over_network(tmp_path, gaussian(max_rounds=1))
    with pytest.raises(ModelFileError, match="journal is of another fit; resume that one, or begin a new one"):
        over_network(tmp_path, gaussian(max_rounds=2))


def rewritten(folder, change):
    """The journal of a run, cut after round 2 and changed."""
    header, *records = read_journal(folder / "run" / JOURNAL)
    steps = [k for k, record in enumerate(records) if record.about["task"] == STEP]
    (folder / "run" / JOURNAL).unlink()
    journal = Journal(folder / "run", spec_for(gaussian()), header.about["sites"])
    for record in records[: steps[2]]:
        journal.append(change(record))
    journal.close()


def test_a_center_that_asks_another_task_does_not_go_on(tmp_path):
    over_network(tmp_path, gaussian())
    rewritten(tmp_path, lambda r: r._replace(about=r.about | {"task": "look"} if r.about["task"] == STEP else r.about))
    with pytest.raises(ModelFileError, match=r"'look' as exchange 4, where this fedgrem asks for 'step': another ver"):
        over_network(tmp_path, gaussian())


def test_a_center_that_finds_other_numbers_does_not_go_on(tmp_path):
    over_network(tmp_path, gaussian())
    rewritten(tmp_path, lambda r: r._replace(about=r.about | {"asked": 7} if r.about["task"] == STEP else r.about))
    with pytest.raises(ModelFileError, match="exchange 4 of the journal was asked with other numbers than"):
        over_network(tmp_path, gaussian())


# -- replaying without sites


def test_a_replay_recomputes_the_model_and_touches_nothing(whole):
    expected, folder = whole
    before = (folder / "run" / JOURNAL).read_bytes()
    played = replay(folder / "run" / JOURNAL)
    assert played.finished is not None
    assert_identical(played.finished.result, expected.result)
    assert played.differs == []
    assert (folder / "run" / JOURNAL).read_bytes() == before
    assert len(played.exchanges) == expected.result.cost["exchanges"]
    first = played.exchanges[0]
    assert (first.number, first.task, first.sites) == (1, CENSUS, list(NAMES))
    assert first.numbers == 3 * (1 + 2 + 2 + 2 + 1) + 3 * 2 * 64


def test_a_replay_of_an_unfinished_run_ends_where_the_journal_does(tmp_path):
    with pytest.raises(CrashError):
        over_network(tmp_path, gaussian(), spoil=crash_at(5))
    played = replay(tmp_path / "run" / JOURNAL)
    assert played.finished is None
    assert [exchange.number for exchange in played.exchanges] == [1, 2, 3, 4]
