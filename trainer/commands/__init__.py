"""The commands, one a module: each turns its options into one call and reports what came of it.

The modules import nothing heavy at the top, since every start of the command line imports all of them.
"""
