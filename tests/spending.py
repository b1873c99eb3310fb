"""A budget that is spent step by step: the oracle of everything that answers until a budget ends."""

import math

from terrine.privacy.accounting.events import Event
from terrine.privacy.accounting.gaussian import GaussianFilter, mu_squared


class Spending(GaussianFilter):
    """A filter that is told what was released, one event after the other."""

    def spend(self, event: Event) -> None:
        assert self.affords(event)
        self.mu_squared_spent = math.nextafter(self.mu_squared_spent + mu_squared(event), math.inf)
