"""A coordinator that sends what it likes: its own orders through a site's entry point, in any order."""

from itertools import count

import numpy as np
import polars as pl

from fedgrem.engines.remote.declaration import CENSUS, HELLO, Declaration, Order
from fedgrem.engines.remote.floor import params_of
from fedgrem.engines.remote.wire import decode, encode
from fedgrem.errors import MessageError
from fedgrem.types import Params, map_arrays

NONCE = count(1)


def params_of_two(theta=((-3.0, -3.0), (3.0, 3.0)), weights=(0.5, 0.5)):
    """A mixture of two unit Gaussians in two columns."""
    return Params(np.array(weights), np.array(theta, dtype=float))


class Coordinator:
    """Makes orders of the right form with numbers of its own."""

    def __init__(self, guard, spec, settings):
        self.guard, self.settings, self.exchange = guard, settings, 0
        self.declaration = Declaration(spec, len(settings.columns))

    def ask(self, task, *, exchange=None, **options):
        """What the site answers, decoded."""
        self.exchange = self.exchange + 1 if exchange is None else exchange
        order = HELLO if task == CENSUS else self.order(task, **options)
        released = self.guard.answer(task, encode(order), exchange=self.exchange)
        forms = [form.reply for form in self.declaration.forms(task)]
        return decode(released, next(form for form in forms if set(encode(form)) == set(released)))

    def order(self, task, *, params=None, units=None, parts=2, new=False):
        """An ordinary order, or with ``params`` wherever there is a mixture; ``new`` makes it differ by a hair."""
        try:
            form = self.declaration.forms(task)[0].order
        except MessageError:
            return HELLO
        mail = map_arrays(lambda leaf: np.zeros(leaf.shape, leaf.dtype), form.mail)
        if (blank := params_of(mail)) is not None:
            params = params_of_two() if params is None else params
            params = params._replace(theta=params.theta + (1e-9 * next(NONCE) if new else 0.0))
            mail = _swap(mail, blank, map_arrays(lambda b, p: np.broadcast_to(p, b.shape).copy(), blank, params))
        mail = mail._replace(parts=np.asarray(parts)) if hasattr(mail, "parts") else mail
        extra = getattr(getattr(mail, "fits", mail), "extra", None)
        mail = _swap(mail, extra, extra._replace(steps=np.asarray(1))) if hasattr(extra, "steps") else mail
        if units is None and form.units is not None:
            units = type(form.units)(np.zeros(form.units.location.shape), np.ones(form.units.scale.shape))
        return Order(mail, units, np.asarray(False))

    def rows(self):
        """What it wants to know."""
        return pl.read_parquet(self.settings.data).select(self.settings.columns).to_numpy()


def _swap(message, old, new):
    """A message with one part of it replaced."""
    if message is old:
        return new
    if isinstance(message, tuple):
        parts = [_swap(part, old, new) for part in message]
        return type(message)(*parts) if hasattr(message, "_fields") else tuple(parts)
    return message
