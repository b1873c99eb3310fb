"""Teachers: models that are each trained on one part of the private records and vote on queries."""
