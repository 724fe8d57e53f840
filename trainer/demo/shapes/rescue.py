"""A small animal is stuck, is freed, and pays the kindness back."""

from trainer.demo.cast import character, helper, place, thing
from trainer.demo.shapes.shape import Shape

SHAPE = Shape(
    roles={"hero": character, "helper": helper, "toy": thing("ball", "hat", "kite", "scarf"), "place": place},
    turns=(
        {
            "stuck": "stuck in deep mud",
            "rescue": "{He} held out a long branch and pulled, and pop, the {helper} was free",
            "later": "the wind blew it into the mud",
            "payback": "knew a way through the mud and brought back the {toy}",
        },
        {
            "stuck": "caught in an old net",
            "rescue": "{He} undid the knots, one after another, until the {helper} was free",
            "later": "the wind blew it into a tall tree",
            "payback": "went up the tree and threw down the {toy}",
        },
        {
            "stuck": "stuck under a heavy log",
            "rescue": "{He} pushed with all {his} might. The log rolled away, and the {helper} was free",
            "later": "it fell into a deep hole",
            "payback": "went down into the hole and came back with the {toy}",
        },
    ),
    story="""
- {once} {oneday}, {he} walked to {place} with {toy.a}.
- {once} {oneday}, {hero} wanted to play {place.in}, so {he} took {toy.a} and set out.

- On the way, {he} heard a small voice. "Help! Help!" It was {helper.a}, {stuck}.
- All at once, someone called for help. {Hero} ran and found {helper.a}, {stuck}.

- "Don't be afraid," said {hero}. "I will get you out." {rescue}.
- "Hold still," said {hero}. "I will not leave you here." {rescue}.

- "One day, I will help you too," said the {helper}. {Hero} {smiled}.
- "How can I ever thank you?" asked the {helper}. "That is what friends are for," said {hero}.

--

- The next day, {hero} was playing with the {toy} when {later}. "Now I will never get it back!" {he} cried.
- A week went by. {Hero} was {place.in} with the {toy} when {later}. The little {hero.kind} was very {sad}.

- "May I help?" said a voice. It was the {helper}! The {helper} {payback}.
- Who should come by but the {helper}! "Now it is my turn," said the {helper}. The {helper} {payback}.

--

- "You helped me, and I helped you," said the {helper}. "Now we are friends."
- {thanks}

- {always}, {hero} never walked past anyone who needed help.
- {always}, {hero} and the {helper} played with the {toy} together.
""",
)
