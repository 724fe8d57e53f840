"""Two who want the same thing find out that it is better together."""

from trainer.demo.cast import character, place, thing
from trainer.demo.shapes.shape import Shape

SHAPE = Shape(
    roles={
        "hero": character,
        "friend": character,
        "toy": thing("sled", "boat", "cart", "wagon"),
        "place": place,
    },
    turns=(
        {
            "idea": "You can go first, and I will count to twenty. Then it is my turn.",
            "together": "{Hero} went first and {friend} counted out loud. Then {friend} went and {hero} counted.",
            "lesson": "taking turns is fun",
        },
        {
            "idea": "I have a rope. One of us can pull, and the other can ride.",
            "together": "{Friend} pulled the rope, and {hero} laughed all the way. Then they changed places.",
            "lesson": "two can do more than one",
        },
        {
            "idea": "Let us be sailors! The {toy} is our ship.",
            "together": "{Hero} was the captain and {friend} looked out for whales. They sailed around the world.",
            "lesson": "a game for two is the best game",
        },
    ),
    story="""
- {once} {Hero} wanted {toy.a} more than anything.
- {once} All winter long, {hero} dreamed of {toy.a}.

- {oneday}, {he} found {toy.a} {place.in}. A note on it said, "This is for everyone."
- {oneday}, there was {toy.a} {place.in}. A note on it said, "Please play with me."

- But {friend.a} named {friend} had seen it too. "It is mine!" said {hero}. "No, it is mine!" said {friend}.
- But {friend.a} named {friend} came running. "I saw it first!" said {friend}. "No, I did!" said {hero}.

--

- {Hero} pulled, and {friend} pulled. The {toy} creaked. "Stop!" said {hero}. "It will break."
- They held on to the {toy} and did not let go. Soon their arms were tired. "This is no fun," said {hero}.
- {Hero} sat down on one side and {friend} on the other. "I am sorry," {hero} said at last.

- They looked at each other. "I know what to do," said {friend}. "{idea}"
- Then {friend} had an idea. "{idea}"

- "Yes, let us try it!" said {hero}. {together}
- {Hero} {smiled}. "I like that," {he} said. {together}

--

- {Hero} had wanted the {toy} for {himself}, but now {he} knew that {lesson}.
- "I like the {toy} even more with you," said {hero}. {He} had learned that {lesson}.

- {always}, {hero} and {friend} met {place.in} every day, and they were the best of friends.
- When the sun went down, they walked home and pulled the {toy} behind them.
""",
)
