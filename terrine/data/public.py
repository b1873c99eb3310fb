"""The known public benchmarks: data that anyone may already read, by name.

Whatever is not on the list is private: it needs an account with a budget, and figures computed from it stay at home. A
dataset that is added is therefore private until its name is added here, which is a statement about the data and a
change to code that somebody reviews. Another package cannot make it: a source of its own is private whatever its name.
"""

PUBLIC_BENCHMARKS = (
    *("digits", "mnist", "fashion_mnist", "cifar10", "cifar100", "svhn"),
    *("bloodmnist", "breastmnist", "chestmnist", "dermamnist", "octmnist", "organamnist", "organcmnist", "organsmnist"),
    *("pathmnist", "pneumoniamnist", "retinamnist", "tissuemnist"),
)


def known_to_be_public(name: str, source: type) -> bool:
    """Return whether `name` is on the list and `source` is Terrine's own."""
    return name in PUBLIC_BENCHMARKS and source.__module__.startswith("terrine.data.")
