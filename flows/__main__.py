"""`python -m flows`: the same commands as `terrine`."""

from flows.cli import main

main()
