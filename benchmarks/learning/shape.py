"""The one shape that all contestants train: about five million parameters."""

VOCAB_SIZE = 4096
CONTEXT_LENGTH = 256
D_MODEL = 256
NUM_LAYERS = 5
NUM_HEADS = 4
D_FF = 704  # of three matrices; GPT-2's two are 4 * D_MODEL wide, which is as many weights to 2 %
