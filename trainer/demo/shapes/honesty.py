"""Something breaks, and telling the truth mends more than the thing."""

from trainer.demo.cast import character, elder, thing
from trainer.demo.shapes.shape import Shape

SHAPE = Shape(
    roles={"hero": character, "elder": elder, "thing": thing("cup", "jar", "plate", "vase", "bowl")},
    turns=(
        {"hiding": "under the bed", "doing": "was bouncing a ball inside the house"},
        {"hiding": "behind the curtain", "doing": "was dancing on a chair"},
        {"hiding": "in a drawer", "doing": "was riding on the broom"},
    ),
    story="""
- {once} In the kitchen stood {thing.a} that {his} {elder} loved.
- {once} {His} {elder} had {thing.a}. "Please take care with it," {elder.he} always said.

- {oneday}, {hero} {doing}. Crash! The {thing} fell down and broke.
- {oneday}, {hero} {doing} when {he} hit the shelf. Crash! The {thing} lay on the floor in pieces.

- {Hero} was afraid. {He} picked up the pieces and hid them {hiding}.
- "Oh no," whispered {hero}. {He} hid the pieces {hiding} and hoped that no one would ask.

--

- At supper, {hero} could not eat. {His} tummy hurt.
- All day long, {hero} did not laugh and did not sing.

- "Have you seen my {thing}?" asked {his} {elder}. {Hero} looked at the floor.
- "How odd," said {his} {elder}. "I can't find my {thing}." {Hero} turned red.

- Then {he} took a deep breath. "I broke it," {he} said. "I was afraid to tell you."
- "It was me," said {hero}, and {he} began to cry. "I broke it, and then I hid it. I am so sorry."

--

- {His} {elder} put an arm around {hero}. "I liked that {thing}," {elder.he} said, "but I like the truth more."
- "It takes a brave heart to tell the truth," said {his} {elder}, and {elder.he} hugged {hero}.

- {Hero} brought out the pieces, and they put the {thing} together again with glue.
- Together they took out the pieces and some glue. By bedtime, the {thing} was whole again.

- {Hero} felt as light as a feather. {always}, {he} told the truth right away.
- {evening}, {hero} had two plates of soup, and {he} was {glad} that {he} had told the truth.
""",
)
