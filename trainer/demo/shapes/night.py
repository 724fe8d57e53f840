"""A sound in the dark turns out to be a friend."""

from trainer.demo.cast import character, elder, thing
from trainer.demo.shapes.shape import Shape

SHAPE = Shape(
    roles={
        "hero": character,
        "elder": elder,
        "lamp": thing("lamp", "lantern", "candle"),
        "cover": thing("blanket", "pillow"),
    },
    turns=(
        {
            "sound": "Tap, tap, tap",
            "fear": "a giant with long fingers",
            "truth": "It was the branch of the apple tree, tapping on the window in the wind",
            "after": "The branch is only waving to me",
        },
        {
            "sound": "Scratch, scratch, scratch",
            "fear": "a monster with sharp claws",
            "truth": "It was a tiny cat, cold and wet, and it wanted to come in",
            "after": "It is only a cat who needs a friend",
        },
        {
            "sound": "Hoo, hoo, hoo",
            "fear": "a ghost on the roof",
            "truth": "It was a baby owl on the roof, calling for its supper",
            "after": "The owl is only saying good night",
        },
        {
            "sound": "Drip, drip, drip",
            "fear": "a sea monster in the kitchen",
            "truth": "It was water, dripping from the tap into a pot, one drop at a time",
            "after": "The water is only singing to the pot",
        },
    ),
    story="""
- {once} {Hero} was brave all day long, but {he} was afraid of the dark.
- {once} {He} liked the day, but {he} did not like the night.

- Each night, {hero} pulled {cover.a} up to {his} nose and wished for the morning.
- At bedtime, {he} hugged {cover.a} and wished that {he} were not afraid.

- One night, {he} heard a sound. {sound}.
- One night, when the house was still, there was a sound. {sound}.

--

- "It must be {fear}!" thought {hero}, and {he} hid under the {cover}.
- {Hero} shook from head to toe. "What if it is {fear}?" {he} whispered.

- {He} called {his} {elder}. "Let us go and look," said {his} {elder}. "Things are smaller in the light."
- {He} ran to {his} {elder}. "When I am afraid," said {his} {elder}, "I go and look."

- {Hero} took {lamp.a} in one hand and {his} {elder}'s hand in the other.
- {His} {elder} lit {lamp.a}. {Hero} went first, as quietly as {he} could.

- {sound}. {Hero} held up the {lamp} and looked.
- The sound came closer. {sound}. {Hero} lifted the {lamp} high.

--

- {truth}. {Hero} began to laugh.
- {truth}. "You were very brave," said {his} {elder}. "You looked."

- {Hero} went back to bed. "{after}," {he} said, and {he} slept until morning.
- The next night, {hero} heard it again. "{after}," {he} said. {He} put down the {cover} and was not afraid.
""",
)
