"""Services of the operating system: memory, processors, files, locks, threads. Depends on nothing else here."""
