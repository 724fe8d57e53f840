"""The page about runs while they train: what is new in their folders, and the server that sends it to browsers."""
