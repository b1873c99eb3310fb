"""The image programs, one a file."""
