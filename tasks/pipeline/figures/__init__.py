"""What evaluation says of a run: private figures, the released accuracy, and the tables that DVC shows."""
