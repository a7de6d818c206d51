"""Orders and answers as NVFlare carries them: one DXO of plain values and bytes."""

from typing import Any, NamedTuple

from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.shareable import Shareable

from fedgrem.engines.remote.wire import Fields
from fedgrem.errors import MessageError


class Letter(NamedTuple):
    """What is in an envelope, either way."""

    exchange: int
    fields: Fields
    declined: str = ""
    """Why a site does not answer; there are no fields then."""
    place: str = ""
    """A hash of the machine and the folder of a site's kit: two copies of a kit have two."""


def envelope(letter: Letter) -> Shareable:
    """The message to send."""
    return DXO(DataKind.COLLECTION, data=dict(letter._asdict())).to_shareable()


def opened(shareable: Shareable) -> Letter:
    """What a message holds; anything but a letter is refused."""
    try:
        data: Any = from_shareable(shareable).data
    except (ValueError, TypeError, KeyError) as error:
        raise MessageError("the message is not one of this package.") from error
    if not isinstance(data, dict) or set(data) != set(Letter._fields):
        raise MessageError(f"the message does not consist of {', '.join(Letter._fields)}.")
    letter = Letter(**data)
    words = isinstance(letter.declined, str) and isinstance(letter.place, str)
    if type(letter.exchange) is not int or not isinstance(letter.fields, dict) or not words:
        raise MessageError("the message has an exchange, fields or a reason of the wrong type.")
    return letter
