"""What a party of a collaboration does: propose, accept, train locally, finish."""
