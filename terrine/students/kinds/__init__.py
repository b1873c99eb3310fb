"""The kinds of students, one per file: its settings, and what it trains. None of these files imports torch."""
