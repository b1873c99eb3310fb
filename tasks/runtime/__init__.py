"""Shared code of stages: runs, folders, artefacts on disk, tasks, keys, accounts and releases."""
