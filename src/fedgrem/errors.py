"""Everything the package raises on purpose, under one root."""


class FedGrEMError(Exception):
    """Root of the package's exceptions."""


class InputError(FedGrEMError, ValueError):
    """The data or an argument cannot be used; the message says whose, what was got, and what to do."""


class ShapeError(InputError):
    """An array does not have the shape that the model implies."""


class InputTypeError(FedGrEMError, TypeError):
    """An argument is of a type that cannot be used."""


class ModelFileError(FedGrEMError, ValueError):
    """A saved model is missing, incomplete, or of a version that this package does not read."""


class MissingExtraError(FedGrEMError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""


class MessageError(FedGrEMError, ValueError):
    """A message between a site and the center is not what was declared; it is not used."""


class PausedError(FedGrEMError, RuntimeError):
    """A fit over a network stopped before its end; it can go on from its last finished round."""


class SitesError(FedGrEMError, RuntimeError):
    """A server, a site or a job over a network could not do what was asked."""
