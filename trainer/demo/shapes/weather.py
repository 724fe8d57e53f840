"""Weather spoils a plan, and the wish comes true in another way."""

from trainer.demo.cast import character, elder
from trainer.demo.shapes.shape import Shape

SHAPE = Shape(
    roles={"hero": character, "friend": character, "elder": elder},
    turns=(
        {
            "wish": "have a picnic",
            "where": "(in the meadow|by the lake)",
            "packed": "bread, cheese and a big bag of plums",
            "idea": "We can have our picnic right here on the floor",
            "indoors": "They put down a blanket and ate the bread, the cheese and the plums.",
        },
        {
            "wish": "look at the stars",
            "where": "(on the hill|on the beach)",
            "packed": "a lantern and some warm tea",
            "idea": "We can cut stars out of paper",
            "indoors": "They hung paper stars all over the room. Then they gave each star a name.",
        },
        {
            "wish": "put up a tent",
            "where": "(in the forest|in the orchard)",
            "packed": "a big sheet and two pillows",
            "idea": "The table can hold up our tent",
            "indoors": "They hung the sheet over the table and put the pillows inside. It was warm and dry.",
        },
        {
            "wish": "sail paper boats",
            "where": "(on the pond|on the lake)",
            "packed": "ten paper boats and a bag of nuts",
            "idea": "The rain has made a river in front of the door",
            "indoors": "They put on their boots, and the paper boats sailed all the way to the gate.",
        },
    ),
    story="""
- {once} {His} best friend was {friend.a} named {friend}.
- {once} Next door lived {friend.a} named {friend}, and they played together every day.

- {oneday}, {hero} and {friend} wanted to {wish} {where}. They packed {packed}.
- All week long, {hero} and {friend} made a plan to {wish} {where}. They packed {packed}.

- But on the way, the sky turned dark. Thunder rolled, and big drops began to fall.
- But just as they were about to leave, a storm blew in. The rain came down hard.

--

- They ran back inside. "Now we can't {wish}," said {hero}, and {he} was very {sad}.
- "Quick, inside!" said {his} {elder}. {Hero} looked out at the rain. "Our day is spoiled," {he} said.

- {His} {elder} gave them each a towel. "A storm is no reason to give up," {elder.he} said.
- "Rain can stop a walk," said {his} {elder}, "but it can't stop a good idea."

- {Friend} looked around. "I know!" said {friend}. "{idea}!"
- {Hero} thought for a while. "{idea}!" {he} said.

--

- {indoors}
- {Hero} and {friend} got to work. {indoors}

- "We did {wish} after all," said {hero}. When the sun came out at last, they did not even see it.
- {Hero} {smiled}. "We wanted to {wish}, and we did!" {always}, they were {glad} each time it rained.
- {Hero} was {glad}. "Can we {wish} again tomorrow," asked {friend}, "even if the sun shines?"
""",
)
