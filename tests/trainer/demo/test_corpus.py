"""The embedded corpus: the same stories everywhere, without faults, and enough of them."""

import hashlib
import itertools
import re
from collections import Counter

import pytest

from trainer.demo.corpus import SEPARATOR, stories, write_corpus

GOOD = """\
Once upon a time, there was an eager fox named Mia. Her favorite thing in the world was a red ball. One day, Mia took
the ball to the park and played until the sun was low. On the way home, Mia stopped. The red ball was gone!

She looked here and there, but the ball was nowhere to be seen. The little fox was very sad. "Why are you so sad?"
asked an old owl. "I lost my red ball," said Mia. "Did you stop to rest?" asked the owl. "Yes," said Mia. "I sat down
under a bench."

They went back to the park. There, under a bench, lay the red ball! Mia was so glad that she jumped up and down. "Thank
you so much!" said Mia. After that, Mia always looked around twice before she went home.""".replace("\n\n", "¶")
GOOD = GOOD.replace("\n", " ").replace("¶", "\n\n")


@pytest.fixture(scope="module")
def corpus() -> list[str]:
    return list(itertools.islice(stories(2), 2500))


def test_a_good_story_has_no_faults(find_faults):
    assert find_faults(GOOD) == []


@pytest.mark.parametrize(
    ("good", "broken"),
    [
        ("an eager fox", "a eager fox"),
        ("an old owl", "an wise owl"),
        ("home, Mia stopped", "home, Tom stopped"),
        ("said Mia. After", "said Rosa. After"),
        ("named Mia", "called Mia"),
        ("Her favorite", "His favorite"),
        ("that she jumped", "that he jumped"),
        ("little fox was", "little bear was"),
        ("lay the red ball", "lay the blue ball"),
        ("lay the red ball", "lay the red hat"),
        ("lay the red ball", "lay the thing"),
        ("asked the owl", "asked the frog"),
        ('"Thank you', "Thank you"),
        ("bench, lay", "bench , lay"),
        ("They went", "They  went"),
        ("They went", "they went"),
        ("the park and", "the the park and"),
        ("the park and", "the {place} and"),
        ("before she went home.", "before she went"),
        ("She looked here and there, but", "But " * 120 + "but"),
    ],
)
def test_each_fault_is_found(find_faults, good, broken):
    assert good in GOOD
    assert find_faults(GOOD.replace(good, broken)) != []


@pytest.mark.extended
def test_no_story_has_a_fault(corpus, find_faults):
    assert [(fault, story) for story in corpus for fault in find_faults(story)] == []


def test_stories_are_the_same_on_every_machine_and_python():
    # The first is the same on Python 3.11, 3.12 and 3.13. A new digest is a new corpus: note it in CHANGELOG.md.
    assert digest(stories(1)) == "0dd76705a8e9b7a9f672cd63467e09c12c0411bfe9b8938a4771510b6620b5bb"
    assert digest(stories(7)) == "fd4f96654d0eb0231606eaccfa6874b9ab09450ad4257e172c755e4b5b4431b1"


def digest(texts):
    return hashlib.sha256("\n".join(itertools.islice(texts, 1000)).encode()).hexdigest()


def test_another_seed_gives_other_stories(corpus):
    assert not set(corpus) & set(itertools.islice(stories(3), 2500))


@pytest.mark.extended
def test_stories_do_not_repeat():
    count = 30_000
    assert len(set(itertools.islice(stories(1), count))) > 0.999 * count


def test_the_vocabulary_is_that_of_a_picture_book(corpus):
    words = Counter(word for story in corpus for word in re.findall(r"[a-z]+(?:'t)?", story.lower()))
    assert 600 <= len(words) <= 1000
    # None so rare that a model could not learn it.
    assert min(words.values()) >= 5


def test_about_half_open_as_children_expect(corpus):
    share = sum(story.startswith("Once upon a time, ") for story in corpus) / len(corpus)
    assert 0.5 < share < 0.7


def test_the_file_is_laid_out_as_stories_and_separator_lines(tmp_path):
    path = tmp_path / "corpus.txt"
    count = write_corpus(path, seed=5, size_bytes=200_000)
    text = path.read_bytes().decode("ascii")
    assert 200_000 <= len(text) < 202_000
    assert text.endswith(f"\n{SEPARATOR}\n")
    assert text.split(f"\n{SEPARATOR}\n")[:-1] == list(itertools.islice(stories(5), count))
    assert SEPARATOR == "<|endoftext|>"


def test_progress_counts_bytes_up_to_the_size_of_the_file(tmp_path):
    path, seen = tmp_path / "corpus.txt", []
    write_corpus(path, size_bytes=2_000_000, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == path.stat().st_size
    assert len(seen) > 2


def test_an_interrupted_corpus_leaves_the_old_one(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("old")

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_corpus(path, size_bytes=2_000_000, progress=interrupt)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
