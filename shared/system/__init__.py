"""What every part needs of the operating system: memory, processors, files, locks, threads."""
