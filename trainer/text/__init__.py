"""Reading text: files of several formats, compressed or not, and the documents in them."""
