"""What leaks in fact: lower bounds on the privacy loss of what was implemented, and attacks on what was trained."""
