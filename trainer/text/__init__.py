"""Text as it comes: files of several formats, packed or not, as documents."""
