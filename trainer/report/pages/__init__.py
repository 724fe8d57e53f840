"""The page about runs: served by `watch` while they train, and put into one file by `report`."""
