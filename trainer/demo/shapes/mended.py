"""A toy breaks, and is dearer once it is mended."""

from trainer.demo.cast import character, elder, place, thing
from trainer.demo.shapes.shape import Shape

SHAPE = Shape(
    roles={
        "hero": character,
        "elder": elder,
        "toy": thing("train", "boat", "cart", "horse", "truck"),
        "place": place,
    },
    turns=(
        {
            "broke": "a wheel came off",
            "tools": "some glue and a button",
            "fix": "They put glue on the button, and it became a wheel",
            "mark": "The new wheel went click, click, click, like a tiny clock",
        },
        {
            "broke": "one side cracked from end to end",
            "tools": "a needle and some strong thread",
            "fix": "They made tiny holes along the crack and sewed it shut",
            "mark": "The thread looked like a row of little birds",
        },
        {
            "broke": "one corner broke off",
            "tools": "some glue and a pot of paint",
            "fix": "They put the corner back with glue and painted a star on it",
            "mark": "The star seemed to shine when the lamp was lit",
        },
    ),
    story="""
- {once} {His} {elder} had made {him} {toy.a} out of wood.
- {once} For {his} birthday, {his} {elder} had given {him} {toy.a}.

- {oneday}, {hero} took the {toy} to {place}. But {he} ran too fast and fell.
- {oneday}, {hero} carried the {toy} to {place}. But the path was steep, and {he} slipped.

- The {toy} hit a stone, and {broke}.
- The {toy} fell to the ground, and {broke}.

--

- "My {toy}!" cried {hero}. {He} carried it home with tears in {his} eyes.
- {Hero} was very {sad}. {He} walked home slowly with the {toy} in {his} arms.

- "Can we make it whole again?" {he} asked. "We can try," said {his} {elder}, "but you must help me."
- "Must we throw it away?" {he} asked. "Oh no," said {his} {elder}. "What is broken can be mended."

- They sat down at the table with {tools}. {fix}.
- {His} {elder} took out {tools}. {fix}.

--

- At last, the {toy} was as good as new. {mark}.
- In the morning, the {toy} was whole again. {mark}.

- "Now it is better than before!" said {hero}.
- "I like it even more now," said {hero}, "because we mended it together."

- {always}, {hero} held on to the {toy} with both hands.
- {always}, when something broke, {hero} said, "Don't cry. I know how to mend it."
- {evening}, {hero} hugged {his} {elder}, and the {toy} stood by the bed until morning.
""",
)
