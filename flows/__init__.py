"""Orchestration: Prefect flows, the command line, deployments."""
