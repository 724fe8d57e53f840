from trainer.console.plot import bars


def test_bars_are_drawn_in_eighths_of_a_line() -> None:
    assert bars([0, 1, 2, 4], height=1) == [" ▂▄█"]
    assert bars([0, 1, 2, 4], height=2) == ["   █", " ▄██"]


def test_a_value_above_zero_is_always_seen() -> None:
    assert bars([1e-9, 0, 1], height=2) == ["  █", "▁ █"]


def test_nothing_to_draw() -> None:
    assert bars([], height=2) == ["", ""]
    assert bars([0.0, 0.0], height=1) == ["  "]
