"""Fits without a server on NVFlare: letters in order, whatever is lost on the way, and the answer of one process."""

import json
import threading
from dataclasses import replace

import numpy as np
import pytest

from fedgrem import Decentralized, FederatedGaussianMixture
from fedgrem.data.federation import Federation
from fedgrem.errors import SitesError
from tests.engines.remote.studies import NAMES as CONNECTED
from tests.engines.remote.studies import rows_of, write_site
from tests.fit.test_sums import spec_of

NAMES = ("east", "north", "south", "west")


class Engines:
    """NVFlare's engines of two sites, the acknowledgements of which are lost now and then."""

    def __init__(self):
        self.handlers, self.count, self.lock = {}, 0, threading.Lock()

    def of(self, name):
        from nvflare.apis.fl_constant import ReservedKey, ReturnCode
        from nvflare.apis.fl_context import FLContext
        from nvflare.apis.shareable import make_reply

        engines = self

        class Engine:
            def register_aux_message_handler(self, topic, handler):
                engines.handlers[name] = topic, handler

            def new_context(self):
                return FLContext()

            def send_aux_request(self, targets, topic, request, timeout, fl_ctx, optional):
                (target,) = targets
                with engines.lock:
                    engines.count += 1
                    lost = engines.count % 3 == 0
                if target not in engines.handlers:
                    return {target: make_reply(ReturnCode.TOPIC_UNKNOWN)}
                known, handler = engines.handlers[target]
                assert known == topic
                peer, here = FLContext(), FLContext()
                peer.set_prop(ReservedKey.IDENTITY_NAME, name, private=False, sticky=False)
                here.set_peer_context(peer)
                reply = handler(topic, request, here)
                return {} if lost else {target: reply}

        return Engine()


def test_letters_arrive_once_and_in_order_though_acknowledgements_are_lost(flare):
    from fedgrem.engines.flare.neighbours import PeerPost

    engines = Engines()
    one = PeerPost(engines.of("east"))
    for number in range(12):
        one.send("north", bytes([number]))  # before the other one is there
    other = PeerPost(engines.of("north"))
    assert [other.receive("east", 10.0) for _ in range(12)] == [bytes([k]) for k in range(12)]
    assert other.receive("east", 0.0) is None
    one.wait_until_sent(10.0)
    assert engines.count > 12


@pytest.mark.slow
def test_sites_in_processes_of_their_own_find_the_answer_of_one_process_to_the_bit(flare):
    rows = {name: rows_of(name)[0] for name in NAMES}
    options = {"n_components": 2, "covariance_type": "identity", "penalty": 2.0, "max_rounds": 3, "tol": 0.0}
    here, there = (
        FederatedGaussianMixture(random_state=1, **options).fit(
            rows, engine=Decentralized("ring", precision=1e-9, over=over)
        )
        for over in ("in-process", "flare-simulator")
    )
    for name in ("center_", "means_", "weights_", "site_threshold_", "n_rows_"):
        np.testing.assert_array_equal(getattr(here, name), getattr(there, name), err_msg=name)
    assert here.cost_ == there.cost_
    assert here.site_verdict_.tolist() == there.site_verdict_.tolist()


@pytest.mark.slow
def test_sites_of_a_study_fit_without_a_server_and_their_guards_log_what_neighbours_are_sent(flare, tmp_path):
    from fedgrem.cli.sites_demo import coordinating, free_port
    from fedgrem.engines.flare.kit import init_study
    from fedgrem.engines.flare.operate import Fit, begin
    from fedgrem.engines.flare.processes import start_server, start_site, stop
    from fedgrem.engines.remote.account import pages
    from fedgrem.engines.remote.log import LOG, check_log, read_log
    from fedgrem.engines.remote.roster import Rules
    from fedgrem.engines.remote.site import write_settings
    from fedgrem.engines.remote.sums import OWN

    data = Federation.from_sites(CONNECTED, [rows_of(name)[0] for name in CONNECTED])
    plain = replace(spec_of(data, max_rounds=2, tol=0.0), secure_sums=False, given=None)
    spec = replace(plain, columns=("x0", "x1"))
    engine = Decentralized("ring")
    links = np.argwhere(np.triu(engine.links(CONNECTED, 0))).tolist()
    made = init_study(tmp_path / "study", CONNECTED, "localhost", free_port())
    try:
        start_server(made.server)
        for name in CONNECTED:
            write_settings(write_site(tmp_path, name, neighbours=True), made.kit(name) / "local")
            start_site(made.kit(name), name)
        with coordinating(made) as session:
            session.await_sites(list(CONNECTED))
            run = begin(made, Fit(spec, list(CONNECTED), Rules(min_sites=3), links=links))
            finished = session.carry_out(run)
            with pytest.raises(SitesError, match="cannot be taken up again; begin a new one"):
                session.carry_out(run)
    finally:
        stop(*(made.kit(name) for name in CONNECTED), made.server)
    expected = engine.fit(plain, data)
    np.testing.assert_array_equal(finished.result.center, expected.center)
    assert np.isnan(finished.result.theta).all()  # a site's own answer stays with the site
    assert finished.about["out"] == {}
    for k, name in enumerate(CONNECTED):
        own = json.loads((made.kit(name) / OWN).read_text())
        np.testing.assert_array_equal(own["means"], expected.theta[k])
        records = list(read_log(made.kit(name) / LOG))
        (page,) = pages(records)
        assert f"goes to its neighbours {', '.join(one for one in CONNECTED if one != name)}" in page.about
        assert any("once, to the coordinator" in line.title for line in page.lines)
        added = [one for one in records if one["kind"] == "reply" and "added" in one["sent"]]
        assert len(added) > 10
        assert page.numbers > 100
        assert not check_log(made.kit(name) / LOG).broken
