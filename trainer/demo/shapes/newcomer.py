"""Someone new is too shy to join in, until a small kindness opens the way."""

from trainer.demo.cast import character, place, thing
from trainer.demo.shapes.shape import Shape

SHAPE = Shape(
    roles={
        "hero": character,
        "friend": character,
        "place": place,
        "toy": thing("ball", "drum", "whistle", "kite", "rope"),
    },
    turns=(
        {
            "game": "a game of hide and seek",
            "kindness": "We need one more to hide",
            "gift": "{Friend} stood as still as a stone, and no one found {friend.him} until {friend.he} laughed.",
        },
        {
            "game": "a ring dance",
            "kindness": "Our ring has a gap, just as wide as you are",
            "gift": "{Friend} knew a dance from far away, and soon all of them were dancing it.",
        },
        {
            "game": "a castle of sand",
            "kindness": "Our castle has no tower yet, and we need your help",
            "gift": "{Friend} built a tower with a little window, and it was the best tower of all.",
        },
        {
            "game": "a story game",
            "kindness": "We need someone who knows a new story",
            "gift": "{Friend} told a story about the moon, and everyone leaned in to hear it.",
        },
    ),
    story="""
- {once} {He} had many friends, and they played {place.in} every day.
- {once} {He} liked {place} best of all, for {his} friends were always there.

- {oneday}, someone new stood at the gate. It was {friend.a} named {friend}, who had {toy.a}.
- {oneday}, {friend.a} named {friend} came by with {toy.a} and looked at the ground.

- The others were busy with {game}. {Friend} wanted to play too, but {friend.he} was too shy to ask.
- The others were busy with {game}, and {friend} watched from far away. {Friend.he} was very shy.

--

- {Hero} remembered how it felt to be new. {He} went over and sat down. "I like your {toy}," {he} said.
- "Maybe {friend.he} is shy," said {hero}. {He} went over with a smile. "What a fine {toy}!" {he} said.

- {Hero} held out {his} hand. "Will you join us?" {he} asked. "{kindness}."
- "Come and play with us," said {hero}. "{kindness}."

--

- {Friend} took a deep breath and said yes. {gift}
- So {friend} put down the {toy} and came along. {gift}

- "Where did you learn that?" asked {hero}, and {friend} {smiled}.
- "You must come every day!" said {hero}, and {friend} {smiled}.

- {Friend} was not shy any more. The next day, {friend.he} let everyone play with the {toy}.
- At the end of the day, {friend} gave {hero} the {toy}. "This is for you," {friend.he} said, "because you came over."
- {always}, they all played with the {toy} together, and {friend} was never shy again.
""",
)
