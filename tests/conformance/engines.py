"""Two engines that must give the in-process answer: one site at a time, and over a wire that shuffles."""

import io
import random
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from fedgrem.algorithms.rounds import play_round
from fedgrem.algorithms.tasks import local_task
from fedgrem.data.federation import padded_size


@cache
def compiled(task, start):
    """One site's answer to a task; compiled once per kind of algorithm, whatever its numbers."""
    return jax.jit(lambda algorithm, data, sent: local_task(task, algorithm, start)(data, sent))


@jax.jit
def central_part(algorithm, uploads, state, tol):
    """The rest of a round once the replies are in; compiled, or the solver's loop would be compiled every round."""
    return play_round(algorithm, lambda sent: uploads, state, tol)


class SiteBySite:
    """Calls every site's task on its own rows, without padding, in plain Python."""

    def __init__(self, algorithm, federation, start):
        self._algorithm, self._start, self._federation = algorithm, start, federation
        self._data = [site.as_data() for site in federation.sites]
        self.payloads = []
        """(task, shapes sent to a site, shapes it sent back), of every exchange with the first site."""

    @property
    def site_names(self):
        return self._federation.names

    def ask(self, task, sent):
        messages = [jax.tree.map(lambda leaf, k=k: np.asarray(leaf)[k], sent) for k in range(len(self._data))]
        replies = self._exchange(task, messages)
        self.payloads.append((task, jax.tree.map(np.shape, messages[0]), jax.tree.map(np.shape, replies[0])))
        return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *replies)

    def play(self, state, tol, limit):
        records = []
        while len(records) < limit and not bool(state.stop):
            uploads = self.ask("local_step", self._algorithm.broadcast(state.central))
            state, record = central_part(self._algorithm, uploads, state, tol)
            records.append(record)
        return state, jax.tree.map(lambda *leaves: np.stack(leaves), *records)

    def _exchange(self, task, messages):
        return [self._answer(task, k, message) for k, message in enumerate(messages)]

    def _answer(self, task, k, message):
        step = compiled(task, self._start)
        return step(self._algorithm, self._data[k], message)


class FakeWire(SiteBySite):
    """Sends bytes, and gets the replies back in any order; sites pad their rows, as those on a network do."""

    def __init__(self, algorithm, federation, start):
        super().__init__(algorithm, federation, start)
        self._data = [site.as_data(padded_size(len(site.rows))) for site in federation.sites]

    def _exchange(self, task, messages):
        arrived = []
        for k, message in enumerate(messages):
            received = decode(encode(message), like=message)
            reply = self._answer(task, k, received)
            arrived.append((self.site_names[k], encode(reply), reply))
        random.Random(len(self.payloads)).shuffle(arrived)
        by_name = {name: decode(wire, like=reply) for name, wire, reply in arrived}
        return [by_name[name] for name in self.site_names]


def encode(message):
    """The arrays of a message as bytes; what they are called is known at both ends."""
    buffer = io.BytesIO()
    np.savez(buffer, *(np.asarray(leaf) for leaf in jax.tree.leaves(message)))
    return buffer.getvalue()


def decode(wire, like):
    with np.load(io.BytesIO(wire), allow_pickle=False) as arrays:
        leaves = [arrays[name] for name in arrays.files]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)
