"""Byte-pair encoding beside its peers: `python -m benchmarks.bpe`.

Every measurement is a process of its own (worker.py) that runs one package (trainers.py, encoders.py) on the common
corpus (corpus.py); packages take turns (jobs.py), medians are reported (tables.py) and held against the targets
(targets.py).
"""
