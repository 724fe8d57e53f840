"""Peers that are measured beside ours and come from no package."""
