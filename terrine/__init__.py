"""Terrine: private knowledge transfer from many teachers to a student that may be published.

The science, arrays and tensors in and out. This package imports neither Prefect, DVC nor MLflow and opens no project
path; `tasks` reads and writes files around it and `flows` orders the work.
"""
