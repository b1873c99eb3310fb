"""Steps of a party in a collaboration: propose, accept, train locally, finish."""
