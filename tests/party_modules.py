"""What the processes of parties import, all at once: the server that forks them imports this."""

import gc
import importlib

from terrine.aggregation.mechanism import MECHANISMS

for _name in (
    "tasks.parties.guardian",
    "tasks.parties.process",
    "tasks.parties.student",
    "tasks.parties.teacher",
    # What they import when they need it.
    "cryptography.hazmat.backends.openssl.backend",
    "numpy.random",
    "scipy.optimize",
    "scipy.special",
    "sqlalchemy.dialects.sqlite",
    "terrine.privacy.accounting.calibrate",
):
    importlib.import_module(_name)
MECHANISMS.names()  # and with them plugins, for which all installed packages are asked
gc.collect()
gc.freeze()  # a collection in a forked process would touch, and so copy, all of it
