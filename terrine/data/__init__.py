"""Private data: datasets from many sources in one form, their splits and their partitions among teachers."""
