"""Image programs, which draw synthetic images deterministically from (seed, index)."""
