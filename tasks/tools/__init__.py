"""Work beside the pipeline: searches, attacks and audits, the ledger for people, files that people bring."""
