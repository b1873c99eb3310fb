"""Use of the published student: loading, prediction, export and signatures."""
