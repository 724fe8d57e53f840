"""Something flies up out of reach, and is brought down with a friend's idea."""

from trainer.demo.cast import character, place, thing
from trainer.demo.shapes.shape import Shape

SHAPE = Shape(
    roles={"hero": character, "friend": character, "toy": thing("kite", "balloon", "hat"), "place": place},
    turns=(
        {
            "where": "the top of a tree",
            "tries": "{He} jumped as high as {he} could, but it did not help",
            "idea": "You can stand on my back, and then we are as tall as a giant",
            "solved": "{Hero} stood on {friend}'s back, and now {he} could reach",
            "lesson": "Together we are tall",
        },
        {
            "where": "the roof of a barn",
            "tries": "{He} threw a stick, but the stick stayed up there too",
            "idea": "There is a ladder behind the barn. It is too heavy for one, but not for two",
            "solved": "They carried the ladder to the wall. {Friend} held it still, and {hero} climbed up",
            "lesson": "No ladder is too heavy for two",
        },
        {
            "where": "a branch over the water",
            "tries": "{He} leaned out so far that {he} almost fell in",
            "idea": "I have a long stick with a hook on it. We use it to pick apples",
            "solved": "{Friend} ran home and came back with the stick. {Hero} held it up, and the hook caught on",
            "lesson": "A friend is better than long arms",
        },
    ),
    story="""
- {once} {Hero} had wished for {toy.a}, and now {his} wish came true.
- {once} {He} had saved all {his} coins to buy {toy.a}, and now it was in {his} hands.

- {oneday}, {hero} took the {toy} to {place}. Up, up, up it went into the air!
- {oneday}, {hero} ran and ran {place.in} with the {toy}. "Look how high it flies!" {he} said.

- But a strong wind carried the {toy} away, and it landed on {where}.
- Then the wind gave a big push, and the {toy} landed on {where}.

--

- {tries}.
- "Oh no!" cried {hero}. {tries}.

- {Friend.a} named {friend} was passing by. "Is that your {toy}?" asked {friend}. "Yes," said {hero}.
- "Do you need help?" asked {friend.a} named {friend}. "Yes, please," said {hero}. "My {toy} is up there."

- "{idea}," said {friend}.
- "I have an idea," said {friend}. "{idea}."

--

- {solved}. Down came the {toy}!
- {solved}. "I have it!" called {hero}, and down came the {toy}.

- "{lesson}!" said {hero}. "Now you must have a turn."
- "Thank you!" said {hero}. "{lesson}." {Friend} {smiled}.

- They played with the {toy} until it was dark, far away from {where}.
- {always}, {hero} and {friend} went to {place} together each time the wind blew.
""",
)
