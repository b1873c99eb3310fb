"""Sources of noise that draw less than they are asked for."""

import numpy as np

from terrine.privacy.noise import ReplayNoise


class Silence:
    """A source that draws zeros: shows what is added up."""

    kind = "replay"

    def gaussian(self, shape, sigma):
        return np.zeros(shape)


class QuieterNoise(ReplayNoise):
    """A source that draws only a share of the noise it was asked for."""

    def __init__(self, share, seed=0):
        super().__init__(seed)
        self.share = share

    def gaussian(self, shape, sigma):
        return super().gaussian(shape, sigma * self.share)

    def laplace(self, shape, scale):
        return super().laplace(shape, scale * self.share)
