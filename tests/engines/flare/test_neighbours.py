"""Fits without a server on NVFlare: letters in order, whatever is lost on the way, and the answer of one process."""

import threading

import numpy as np
import pytest

from fedgrem import Decentralized, FederatedGaussianMixture
from tests.engines.remote.studies import rows_of

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
