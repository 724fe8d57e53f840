"""The shape that CS336 trains on TinyStories."""

VOCAB_SIZE = 10_000
CONTEXT = 256
WIDTH = 512
LAYERS = 4
HEADS = 16
D_FF = 1_344
