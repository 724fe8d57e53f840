"""The words that stories are cast from: names, kinds, adults, helpers, colours and places.

Story shapes hold the sentences; this file holds what is put into them.
"""

GIRL_NAMES = (
    "Mia", "Anna", "Amara", "Yuki", "Priya", "Zara", "Rosa", "Mei", "Leila", "Ines", "Freya", "Nia",
)  # fmt: skip
BOY_NAMES = (
    "Tom", "Ben", "Omar", "Kofi", "Ravi", "Leo", "Hugo", "Jin", "Mateo", "Sami", "Emil", "Kenji",
)  # fmt: skip

ANIMALS = ("rabbit", "fox", "bear", "mouse", "hedgehog", "otter", "squirrel", "badger", "kitten", "puppy")

TRAITS = ("curious", "kind", "brave", "quiet", "cheerful", "clever", "gentle", "eager", "lively", "little")

COLOURS = ("red", "blue", "green", "yellow", "orange", "purple", "silver", "white")

# Noun, and the subject pronoun that goes with it.
ELDERS = (
    ("mother", "she"),
    ("father", "he"),
    ("grandmother", "she"),
    ("grandfather", "he"),
    ("aunt", "she"),
    ("uncle", "he"),
)

# Trait, noun and pronoun. No helper is of a kind that a hero can be.
HELPERS = (
    ("old", "owl", "she"),
    ("slow", "turtle", "he"),
    ("busy", "beaver", "he"),
    ("gray", "goose", "she"),
    ("friendly", "frog", "he"),
    ("wise", "crow", "she"),
    ("sleepy", "mole", "he"),
    ("tall", "heron", "she"),
)

# The place, the preposition for being there, and spots where something small can lie.
PLACES = (
    ("the park", "in", ("under a bench", "behind the oak tree", "beside the pond")),
    ("the beach", "on", ("behind a rock", "under an old boat", "beside a sand castle")),
    ("the meadow", "in", ("in the tall grass", "under a bush", "beside the stone wall")),
    ("the forest", "in", ("under a fern", "behind a log", "beside a mushroom")),
    ("the market", "at", ("under a table", "behind a basket of apples", "beside the well")),
    ("the farm", "on", ("behind the barn", "under a cart", "in the hay")),
    ("the lake", "at", ("under the bridge", "in the reeds", "behind an old boat")),
    ("the hill", "on", ("under a bush", "behind a rock", "beside the windmill")),
    ("the orchard", "in", ("under an apple tree", "behind a ladder", "beside an empty basket")),
)
