"""Something good is on the other side, and a way across has to be made."""

from trainer.demo.cast import character, elder
from trainer.demo.shapes.shape import Shape

SHAPE = Shape(
    roles={"hero": character, "friend": character, "elder": elder},
    turns=(
        {
            "treat": "blackberries",
            "use": "jam",
            "barrier": "a stream ran in between, and it was too wide to jump",
            "idea": "We can lay flat stones in the water, one by one",
            "built": "They rolled stones into the water until there was a path to the other side",
            "way": "the stone path",
        },
        {
            "treat": "plums",
            "use": "pie",
            "barrier": "a deep ditch lay in between",
            "idea": "That old log can be our bridge",
            "built": "They pushed and they pushed, and with a thump the log fell across the ditch",
            "way": "the log bridge",
        },
        {
            "treat": "hazelnuts",
            "use": "bread",
            "barrier": "a pond lay in between, and the water was cold",
            "idea": "We can tie those boards together and make a raft",
            "built": "They tied the boards together with a rope. The raft rocked, but it floated",
            "way": "the little raft",
        },
    ),
    story="""
- {once} {His} {elder} made the best {use} in the village, and {hero} loved it.
- {once} There was nothing that {hero} liked more than {his} {elder}'s {use}.

- One day, there were no {treat} left for the {use}. "I will find some!" said {hero}, and {he} took a basket.
- "I would make some {use}," said {his} {elder}, "but we have no {treat}." So {hero} took a basket and went out.

- {He} walked until {he} saw a bush full of {treat}. But {barrier}.
- Soon {he} saw {treat} shining in the sun. But {barrier}.

--

- There {he} met {friend.a} named {friend}. "I want some {treat} too," said {friend}, "but how can we get across?"
- Then {he} met {friend.a} named {friend}. "I come here every year," said {friend}, "but I have never been across."

- {Hero} looked around. "{idea}," {he} said.
- {Hero} thought and thought. Then {he} jumped up. "{idea}!" {he} said.

- It was hard work. {built}.
- So they got to work. {built}.

--

- They picked {treat} until the basket was full.
- On the other side, they filled the basket with {treat}.

- {evening}, {his} {elder} made {use} for all of them, and {friend} stayed to eat.
- {His} {elder} was very {glad} and made {use} at once. {Friend} got the first taste.

- {always}, everyone used {way} that {hero} and {friend} had made.
- And {way} is still there today.
""",
)
