"""Models that other programs have written."""
