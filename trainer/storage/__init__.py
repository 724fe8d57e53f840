"""Folders that jobs write to and read from: on a disk, or in an object store."""
