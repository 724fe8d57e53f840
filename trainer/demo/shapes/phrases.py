"""Templates that many stories share; a story takes one in by its name, as in ``{once}``."""

PHRASES = {
    "once": (
        "(Once upon a time, there was {hero.a} named {hero}.|Once upon a time, there was {hero.a} named {hero}."
        "|Once upon a time, {hero.a} named {hero} lived {home}.|There once was {hero.a} named {hero}."
        "|{Hero.A} named {hero} lived {home}.)"
    ),
    "home": (
        "(in a small house by the river|in a cottage near the woods|at the edge of a village|at the foot of a hill"
        "|in a house by the sea)"
    ),
    "oneday": "(One day|One sunny morning|One windy morning|One warm afternoon|On Saturday|On the first day of spring)",
    "evening": "(That evening|That night)",
    "glad": "(happy|glad|pleased)",
    "sad": "(sad|upset|unhappy)",
    "smiled": "(smiled|laughed|grinned|beamed)",
    "thanks": '("Thank you so much!" said {hero}.|{Hero} thanked the {helper} again and again.)',
    "always": "(From that day on|After that|Ever since that day)",
}
