"""Names of the algorithms as the papers write them."""

NAMES = {
    "fedgrem": "FedGrEM",
    "local-em": "Local-EM",
    "local-grem": "Local-GrEM",
    "fedem": "FedEM",
    "fedgmm": "FedGMM",
    "tgmm": "TGMM",
    "fedem-sa": "FedEM-SA",
    "pooled-em": "Pooled-EM",
    "pooled-grem": "Pooled-GrEM",
}


def name_of(algorithm: str) -> str:
    """The name of an algorithm as people write it; one that is not known as it is."""
    return NAMES.get(algorithm, algorithm)
