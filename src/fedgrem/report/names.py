"""Names of the algorithms as the papers write them."""

from fedgrem.algorithms.registry import ALGORITHMS


def name_of(algorithm: str) -> str:
    """The title of an algorithm; one that is not known as it is.

    Examples
    --------
    >>> name_of("fedgrem"), name_of("mine")
    ('FedGrEM', 'mine')
    """
    return str(ALGORITHMS[algorithm].traits.title) if algorithm in ALGORITHMS else algorithm
