"""What an image program is, how it is known by name, and the loop over parts that all of them share.

A program is a function of (seed, index, size, channels). `index` is an int64 tensor of image numbers on the device that
shall do the work; the result is uint8 [images, channels, size, size] on that device. The contract:

- image i's bytes depend on (seed, i, size, channels) alone: not on the other images in `index`, nor on their number,
  nor on the device or the machine (see `counter` and `exact`);
- randomness comes from `counter` with stream names that begin with the program's name;
- memory is bounded whatever the number of images: `chunks` cuts `index` into parts.
"""

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from torch import Tensor

from terrine.errors import SettingError
from terrine.settings import import_modules, load_plugins


class Program(Protocol):
    """An image program; see the module's text for the contract."""

    def __call__(self, seed: int, index: Tensor, size: int, channels: int) -> Tensor: ...


P = TypeVar("P", bound=Program)

_PROGRAMS: dict[str, Program] = {}


def image_program(name: str) -> Callable[[P], P]:
    """Register a program under a name, in Terrine, a plugin or a notebook.

    Raises SettingError for the name of one of Terrine's own: its bytes are what stored images were drawn as.
    """

    def register(program: P) -> P:
        if name in _PROGRAMS and _PROGRAMS[name].__module__.startswith("terrine."):
            raise SettingError(f"image program '{name}': Terrine has one of this name. Choose another.")
        _PROGRAMS[name] = program
        return program

    return register


def programs() -> dict[str, Program]:
    """Return all programs by their names."""
    import_modules("terrine.synthetic.programs")
    load_plugins()
    return dict(sorted(_PROGRAMS.items()))


def chunks(index: Tensor, size: int, *, cpu: int, gpu: int) -> Iterator[Tensor]:
    """Cut `index` into parts of at most `cpu` (or, on an accelerator, `gpu`) pixels, and at least one image.

    The parts are a matter of memory and caches only; no image depends on them.
    """
    budget = cpu if index.device.type == "cpu" else gpu
    yield from index.split(max(1, budget // (size * size)))
