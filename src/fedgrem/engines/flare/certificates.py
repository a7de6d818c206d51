"""In the server: no site gets in with a certificate that was replaced by a later one, or whose site was removed.

TLS asks only whether the study's authority has signed it. Before NVFlare's server believes who a site says it is, this
compares the certificate with the list that ``fedgrem sites renew`` and ``remove`` keep in the server's kit.
"""

from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.private.fed.utils.identity_utils import InvalidAsserterCert

from fedgrem.engines.flare.kit import REPLACED, read_replaced


class RefusesReplaced(FLComponent):
    """Has the server look at the list whenever a site wants to register."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Put the look before the server's own check, the first time."""
        if event_type == EventType.CLIENT_REGISTER_RECEIVED:
            keeper = fl_ctx.get_engine().client_manager.cred_keeper
            verifier = keeper.get_id_verifier(fl_ctx)
            if verifier is not None and not isinstance(verifier, Current):
                kit = Path(fl_ctx.get_workspace().get_root_dir())
                keeper.id_verifier = Current(verifier, kit / REPLACED)


class Current:
    """NVFlare's check of who a site is, for certificates that are not on the list."""

    def __init__(self, verifier: Any, path: Path) -> None:
        self._verifier, self._path = verifier, path

    def verify_common_name(self, *, asserter_cert: Any, **told: Any) -> bool:
        """As NVFlare's own."""
        if asserter_cert.serial_number in read_replaced(self._path):
            raise InvalidAsserterCert("the certificate was replaced by a later one, or its site was removed")
        return bool(self._verifier.verify_common_name(asserter_cert=asserter_cert, **told))
