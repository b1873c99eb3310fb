"""Terrine: private knowledge transfer from many teachers to a student that may be published.

The science, arrays and tensors in and out. This package imports neither Prefect, DVC nor MLflow and opens no project
path; `tasks` reads and writes files around it and `flows` orders the work.
"""

import os

# Before the first product of matrices: without it MKL lets the last bit of a product of few columns depend on where in
# memory its rows begin, so on a teacher's place in its group and on an image's place in a request. Costs no time.
os.environ.setdefault("MKL_CBWR", "AUTO")
