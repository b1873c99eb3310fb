"""What every stage uses: runs and their folders, artefacts on disk, steps, keys, accounts, what made a result."""
