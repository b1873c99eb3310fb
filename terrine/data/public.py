"""The known public benchmarks: data that anyone may already read, by name.

Whatever is not on the list is private: it needs an account with a budget, and figures computed from it stay at home. A
dataset that is added to the registry is therefore private until its name is added here, which is a statement about the
data and a change to code that somebody reviews.
"""

from terrine.data import medmnist_sets, torchvision_sets

PUBLIC_BENCHMARKS: tuple[str, ...] = ("digits", *torchvision_sets.CLASSES, *medmnist_sets.NAMES)
"""Names of `terrine.data.registry`."""
