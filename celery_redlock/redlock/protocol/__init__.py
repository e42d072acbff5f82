"""Scripts, their replies, and the verdicts over the replies. No I/O."""
