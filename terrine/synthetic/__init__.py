"""Image programs: pictures that a program drew, deterministic per (seed, index)."""
