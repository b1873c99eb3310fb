"""The order of work: Prefect flows, the command line, deployments."""
