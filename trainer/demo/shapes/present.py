"""No money for a present; the best one is made by hand."""

from trainer.demo.cast import character, elder, helper, thing
from trainer.demo.shapes.shape import Shape

SHAPE = Shape(
    roles={
        "hero": character,
        "elder": elder,
        "helper": helper,
        "gift": thing("scarf", "basket", "bowl", "blanket", "hat"),
    },
    story="""
- {once} Soon it would be {his} {elder}'s birthday, and {hero} wanted to give {elder.him} {gift.a}.
- {once} "Tomorrow is my {elder}'s birthday," said {hero}. "I want to give {elder.him} {gift.a}."

- There was {gift.a} in the shop, but it cost ten coins, and {hero} had only two.
- {He} saw {gift.a} in the shop and counted {his} coins. But there were not enough.

--

- "Why the long face?" asked {helper.a}. {Hero} was very {sad} and told the whole story.
- {Helper.a} sat down next to {him}. "I wanted to buy {gift.a}, but I can't," said {hero}.

- "Then make one," said the {helper}. "What you make yourself is worth more than what you buy."
- "You have two hands," said the {helper}, "and hands can make almost anything. I will show you how."

- {Hero} worked all day. {His} first try was too small.
- {Hero} worked until late at night. Twice {he} made a mistake, and twice {he} began again.

- But at last, it was done. It was {gift.a}, made with love.
- But in the end, {gift.a} lay on the table. One side was too long, but {hero} did not mind.

--

- In the morning, {his} {elder} opened the box. "Did you make this {gift} yourself?" {elder.he} asked.
- "Happy birthday!" said {hero}, and {he} held out the {gift}.

- "It is the best present I ever had," said {his} {elder}, and {elder.he} hugged {hero}.
- "No shop has one as fine as this," said {his} {elder}, and {elder.he} gave {hero} a kiss.

- {Hero} was very {glad}. With the two coins, {he} bought a bun and shared it with the {helper}.
- {always}, the {gift} was never far from {his} {elder}.
""",
)
