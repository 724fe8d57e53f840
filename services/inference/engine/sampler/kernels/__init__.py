"""The compiled part of the sampler on CPU.

The scores of a vocabulary are padded to whole blocks with -inf, so that loops have no ends to look after.
"""

TITLE = "the sampler"
