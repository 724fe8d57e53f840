"""Learning a vocabulary from text."""
