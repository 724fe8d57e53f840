"""Python compiled by Numba, and how it is called without the compiler.

A *set of kernels* is a package whose modules hold them (`shared.bpe.kernels` is the tokenizer's); its `TITLE` says
whose they are. Each set has one object file: its kernels may call each other, but none of another set.
"""
