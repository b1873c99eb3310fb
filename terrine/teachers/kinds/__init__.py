"""The kinds of teachers: one file each, with its settings, which build what trains and votes."""
