"""A seed, a long wait, a trouble, and a harvest that is shared."""

from trainer.demo.cast import character, elder, helper
from trainer.demo.shapes.shape import Shape

SHAPE = Shape(
    roles={"hero": character, "helper": helper, "elder": elder},
    turns=(
        {
            "plant": "pumpkin",
            "dish": "a pot of pumpkin soup",
            "trouble": "the sun was hot, and it did not rain for weeks",
            "advice": "Bring it water from the pond, early in the morning",
            "care": "brought water from the pond, one bucket at a time",
        },
        {
            "plant": "sunflower",
            "dish": "a loaf of sunflower bread",
            "trouble": "a strong wind came and bent the plant down to the ground",
            "advice": "Give it a stick to lean on, and tie it with a string",
            "care": "gave it a stick and tied it with a soft string",
        },
        {
            "plant": "strawberry",
            "dish": "a sweet strawberry cake",
            "trouble": "snails came in the night and ate the leaves",
            "advice": "Put a ring of sand around it. Snails don't like sand",
            "care": "put a big ring of sand around the plant",
        },
        {
            "plant": "carrot",
            "dish": "a warm carrot pie",
            "trouble": "weeds grew all around and took the light away",
            "advice": "Pull out the weeds, a few each day",
            "care": "pulled out the weeds, a few each day",
        },
    ),
    story="""
- {once} {His} {elder} gave {him} a tiny seed. "It is a {plant} seed," said {his} {elder}.
- {once} {oneday}, {he} found a seed in a drawer. "That is a {plant} seed," said {his} {elder}.

- {Hero} wanted to grow the biggest {plant} of all. {He} dug a hole and put in the seed.
- "I will grow a {plant} for all of us!" said {hero}. {He} put the seed into the soft ground.

- The next day, there was nothing to see. "You must wait," said {his} {elder}. At last, a green leaf came up.
- For a long time, there was nothing to see. Then a small green leaf came up, and {hero} danced around it.

--

- But then {trouble}. {Hero} was very {sad}.
- But then {trouble}. "My poor {plant}!" said {hero}.

- {Helper.a} came along the fence. "{advice}," said the {helper}.
- {Helper.a} had seen it all. "I can help," said the {helper}. "{advice}."

- So {hero} {care}.
- {Hero} thanked the {helper} and {care}.

--

- The plant grew and grew. By the end of summer, it was big and beautiful.
- Day by day, the plant grew strong. It was the biggest {plant} in the village.

- They made {dish}, and the {helper} got the first taste.
- They made {dish} and shared it with everyone. The {helper} ate the most.

- "It was worth the wait," said {hero}. {He} kept one seed for next year.
- "Next year," said {hero}, "we will grow even more."
""",
)
