"""What parties agree on before anything is computed: a proposal, terms, acceptances, and the next edition."""
