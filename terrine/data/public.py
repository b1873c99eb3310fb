"""Public benchmarks: data that anyone may read, by name and content.

The files of a public benchmark must also have the published digest (`refuse_other_bytes`). All other data are private:
they need an account with a budget, and metrics computed from them are not published. A new dataset stays private until
its name is added here in a reviewed change. Sources from other packages are always private.
"""

from terrine.errors import InputError

PUBLIC_BENCHMARKS = (
    *("digits", "mnist", "fashion_mnist", "cifar10", "cifar100", "svhn"),
    *("bloodmnist", "breastmnist", "chestmnist", "dermamnist", "octmnist", "organamnist", "organcmnist", "organsmnist"),
    *("pathmnist", "pneumoniamnist", "retinamnist", "tissuemnist"),
)


def is_public_benchmark(name: str, source: type) -> bool:
    """Return whether `name` is on the list and `source` belongs to Terrine."""
    return name in PUBLIC_BENCHMARKS and source.__module__.startswith("terrine.data.")


def refuse_other_bytes(name: str, where: str, *, official: bool, public: bool) -> None:
    """Raise InputError if data declared public are not the published ones.

    Args:
        name: The benchmark.
        where: Path of the file that was read.
        official: Whether the file has the published digest.
        public: Whether the settings declare the data public.
    """
    if public and not official:
        raise InputError(
            f"{where} does not have the published digest of {name}, so it is damaged or different, and not public. For "
            "your own images set data.name=npz, data.path, ledger.account and ledger.epsilon; for a modified benchmark "
            "set data.public_benchmark=false, which treats it as private."
        )
