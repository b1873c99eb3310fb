"""The student in use: loading it, asking it, and handing it over in other formats."""
