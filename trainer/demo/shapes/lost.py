"""Something dear is lost, and found by thinking back."""

from trainer.demo.cast import character, helper, place, thing
from trainer.demo.shapes.shape import Shape

SHAPE = Shape(
    roles={
        "hero": character,
        "helper": helper,
        "toy": thing("ball", "kite", "scarf", "hat", "drum", "boat", "bell", "bucket"),
        "place": place,
    },
    story="""
- {once} {He} had {toy.a} and took it everywhere.
- {once} {His} favorite thing in the world was {toy.a}.
- {once} {He} had {toy.a}, and {he} loved it very much.

- {oneday}, {hero} took the {toy} to {place} and played until the sun was low.
- {oneday}, {hero} went to {place} with the {toy}. First {he} (sang a song|looked at the ducks|ate some bread), and
  then {he} took a little nap.

- On the way home, {hero} stopped. The {toy} was gone!
- When it was time to go home, {hero} looked around. "Oh no!" {he} cried. "Where is my {toy}?"

--

- {He} looked here and there, but the {toy} was nowhere to be seen. A tear rolled down {his} cheek.
- {He} walked up and down the path, but {he} could not find it. The little {hero.kind} was very {sad}.

- "Why are you so sad?" asked {helper.a}. "I lost my {toy}," said {hero}.
- Just then {helper.a} came by. "I want my {toy} back," said {hero}, "but I don't know where it is."

- "Close your eyes and think," said the {helper}. {Hero} thought hard. "I sat down {place.spot}!" {he} said.
- "Two pairs of eyes are better than one," said the {helper}. "Let us look {place.spot}."
- "Did you stop to rest?" asked the {helper}. "Yes," said {hero}. "I sat down {place.spot}."

--

- They went back to {place}. There, {place.spot}, lay the {toy}!
- So they walked back to {place}, and there was the {toy}, {place.spot}.

- {Hero} hugged it and danced in a circle. {thanks}
- {Hero} was so {glad} that {he} jumped up and down. {thanks}

- {always}, {hero} always looked around twice before {he} went home.
- {always}, {hero} and the {helper} were good friends, and the {toy} was never lost again.
- {evening}, {hero} put the {toy} next to {his} bed, where {he} could see it.
""",
)
