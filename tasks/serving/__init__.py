"""A finished student at work: predictions, the web service, exports and the MLflow model."""
