"""Something is too hard at first, and is learned bit by bit."""

from trainer.demo.cast import character, helper
from trainer.demo.shapes.shape import Shape

SHAPE = Shape(
    roles={"hero": character, "friend": character, "helper": helper},
    turns=(
        {
            "skill": "swim",
            "where": "the lake",
            "first": "{he} kicked once and sank like a stone",
            "advice": "First lie still and let the water hold you",
            "step": "lay on {his} back and looked at the clouds",
            "done": "swam all the way to the other side",
        },
        {
            "skill": "whistle",
            "where": "the orchard",
            "first": "only air came out",
            "advice": "First make your mouth as round as a berry",
            "step": "made {his} mouth round and blew very softly",
            "done": "whistled a whole song, and the birds sang along",
        },
        {
            "skill": "skate",
            "where": "the park",
            "first": "{his} feet went one way and {he} went the other",
            "advice": "First bend your knees and take small steps",
            "step": "bent {his} knees and took one small step, then two",
            "done": "skated around in a big, smooth circle",
        },
        {
            "skill": "juggle",
            "where": "the market",
            "first": "the balls fell on {his} head",
            "advice": "First throw just one ball, and watch it",
            "step": "threw one ball up and caught it, again and again",
            "done": "juggled three balls while everyone clapped",
        },
        {
            "skill": "read",
            "where": "the school",
            "first": "the letters all looked the same",
            "advice": "First learn the letters of your own name",
            "step": "wrote the letters of {his} name in the sand",
            "done": "read a whole page out loud",
        },
    ),
    story="""
- {once} {Hero} wished that {he} could {skill}.
- {once} More than anything, {hero} wanted to {skill}.

- {oneday}, {he} went to {where} and tried, but {first}. "I will never {skill}," said {hero}.
- {oneday}, {he} went to {where} to try, but {first}. "It is too hard for me!" said {hero}.

--

- {Helper.a} had seen it all. "No one can {skill} on the first day," said the {helper}. "{advice}."
- "Don't give up," said {helper.a}. "I could not {skill} at first. {advice}."

- So {hero} {step}.
- {Hero} {step}. "Like this?" {he} asked. "Just like this," said the {helper}.

- The next day, {he} tried a little more, and the next day more than that.
- Every day, {he} came back and tried again. Some days went well, and some did not.

- And then, one morning, {hero} {done}. "I can {skill}!" {he} shouted.
- A week later, {hero} {done}. "Look!" {he} called to the {helper}. "I can {skill}!"

--

- Not long after, {friend.a} named {friend} came to {where}. "I wish I could {skill}," said {friend}.
- Just then, {friend.a} named {friend} stopped to watch. "I could never {skill}," said {friend}.

- {Hero} {smiled}. "No one can on the first day," {he} said. "I will show you. {advice}."
- "That is what I said too," said {hero}, "but I can help you. {advice}."
""",
)
