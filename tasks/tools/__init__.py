"""Tools besides the pipeline: checks, searches, image sets, the ledger commands, projects and vote files."""
