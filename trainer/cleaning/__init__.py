"""Cleaning a corpus before training: user filters, and the removal of duplicates and near-duplicates."""
