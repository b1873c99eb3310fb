"""The known public benchmarks: data that anyone may already read, by name and by content.

A name does not make data public: what a source reads must have the published digest (`refuse_other_bytes`). Whatever
is not on the list is private: it needs an account with a budget, and figures computed from it stay at home. A dataset
that is added is therefore private until its name is added here, which is a statement about the data and a change to
code that somebody reviews. Another package cannot make it: a source of its own is private whatever its name.
"""

from terrine.errors import InputError

PUBLIC_BENCHMARKS = (
    *("digits", "mnist", "fashion_mnist", "cifar10", "cifar100", "svhn"),
    *("bloodmnist", "breastmnist", "chestmnist", "dermamnist", "octmnist", "organamnist", "organcmnist", "organsmnist"),
    *("pathmnist", "pneumoniamnist", "retinamnist", "tissuemnist"),
)


def known_to_be_public(name: str, source: type) -> bool:
    """Return whether `name` is on the list and `source` is Terrine's own."""
    return name in PUBLIC_BENCHMARKS and source.__module__.startswith("terrine.data.")


def refuse_other_bytes(name: str, where: str, *, official: bool, public: bool) -> None:
    """Raise InputError if a source claims to be public and what it read is not what was published.

    official: whether the digest is the published one. public: whether the settings say that anyone may read the data.
    """
    if public and not official:
        raise InputError(
            f"{where} does not have the published digest of {name}: it is damaged or a different file, and only the "
            "published file is public. Your own images: data.name=npz, data.path, ledger.account and ledger.epsilon. A "
            "copy of a benchmark: data.public_benchmark=false, which treats it as private data."
        )
