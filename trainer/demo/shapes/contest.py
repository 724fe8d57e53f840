"""A contest in which winning turns out to be something else than coming first."""

from trainer.demo.cast import character, thing
from trainer.demo.shapes.shape import Shape

SHAPE = Shape(
    roles={"hero": character, "friend": character, "prize": thing("cup", "ribbon", "crown", "medal")},
    turns=(
        {
            "contest": "a running race",
            "practice": "ran up and down the hill",
            "trouble": "{friend} tripped over a root and fell down",
            "help": "{Hero} turned around and helped {friend} up, and they walked to the end together",
        },
        {
            "contest": "a boat race",
            "practice": "rowed from one side of the lake to the other",
            "trouble": "{friend}'s boat began to leak",
            "help": "{Hero} turned around and took {friend} into {his} boat, and they rowed to the end together",
        },
        {
            "contest": "a baking contest",
            "practice": "baked a cake",
            "trouble": "{friend} dropped the eggs on the floor",
            "help": "{Hero} gave {friend} half of {his} eggs, and both of them baked a very small cake",
        },
        {
            "contest": "a singing contest",
            "practice": "sang to the birds",
            "trouble": "{friend} forgot the words and turned red",
            "help": "{Hero} stood up and sang along, until {friend} knew the words again",
        },
    ),
    story="""
- {once} Soon there would be {contest} in the village, and {hero} wanted to win {prize.a}.
- {once} {Hero} heard of {contest} in the village. "The prize is {prize.a}," {he} said. "I want to win it!"

- Every day, {he} {practice}. "I will get better and better," said {hero}.
- Each morning, {he} {practice}. At night, {he} dreamed of the {prize}.

- The big day came. Next to {hero} stood {friend.a} named {friend}, who wanted to win too.
- At last it was time. "Good luck," said {friend.a} named {friend}. "Good luck to you," said {hero}.

--

- At first all went well. Then {trouble}. {help}.
- {Hero} was doing very well. But all at once, {trouble}. {help}.

- Someone else won the {prize}. "You could have won," said {friend}. "I know," said {hero}, "but this is better."
- So the {prize} went to someone else. "Are you sad?" asked {friend}. "A little," said {hero}, "but you are my friend."

--

- {evening}, there was a knock at the door. {Friend} had made {prize.a} out of paper. "You won this one," {friend.he}
  said.
- The next day, {friend} came with a small box. In it was {prize.a} made of paper. "You won this one," {friend.he} said.

- {Hero} put the paper {prize} on the shelf. It was worth more than gold to {him}.
- {Hero} was very {glad}. Now {he} had a {prize} and a friend.
""",
)
