"""Any order of submitting, canceling, faults and steps: every sequence gets what it gets alone; nothing is left."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from services.inference.engine.types import SequenceRequest
from shared.lm import SamplingParams
from tests.services.inference.engine.core_driver import Driver, expected_scores
from tests.services.inference.engine.fake_runner import FakeMemory, FakeRunner, reference

# Prompts that share beginnings, whole ones too.
_prompts = st.builds(
    lambda base, length, tail: tuple([base] * length + tail),
    st.integers(50, 51),
    st.integers(1, 50),
    st.lists(st.integers(50, 52), max_size=2),
)


@st.composite
def _sequences(draw: st.DrawFn) -> list[SequenceRequest]:
    prompt, scores = draw(_prompts), draw(st.sampled_from([None, None, None, 0, 2]))
    max_tokens = draw(st.integers(0 if scores is not None else 1, 40))
    stop_ids = draw(st.sampled_from([frozenset(), frozenset({0, 1})]))
    return [
        SequenceRequest(prompt, SamplingParams(seed=seed), max_tokens, stop_ids, num_prompt_logprobs=scores)
        for seed in range(draw(st.integers(1, 6)))
    ]


class CoreMachine(RuleBasedStateMachine):
    @initialize(
        blocks=st.integers(7, 24),
        slots=st.integers(1, 6),
        prefill_tokens=st.integers(1, 64),
        memory=st.none() | st.builds(FakeMemory, num_ready=st.just(7), limit=st.integers(7, 24)),
    )
    def start(self, blocks: int, slots: int, prefill_tokens: int, memory: FakeMemory | None) -> None:
        self.memory = memory
        if memory is not None:
            memory.limit = min(memory.limit, blocks)
        runner = FakeRunner(
            num_blocks=blocks, num_slots=slots, max_step_tokens=slots + prefill_tokens, block_memory=memory
        )
        self.driver = Driver(runner, prefill_tokens)
        self.requests: dict[tuple[int, int], SequenceRequest] = {}
        self.canceled: set[tuple[int, int]] = set()
        self.num_requests = 0

    @rule(sequences=_sequences())
    def submit(self, sequences: list[SequenceRequest]) -> None:
        self.driver.submit(self.num_requests, *sequences)
        self.requests |= {(self.num_requests, index): sequence for index, sequence in enumerate(sequences)}
        self.num_requests += 1

    @rule(request_id=st.integers(0, 9), sequence=st.none() | st.integers(0, 5))
    def cancel(self, request_id: int, sequence: int | None) -> None:
        self.driver.core.cancel(request_id, sequence)
        self.canceled |= {key for key in self.requests if key[0] == request_id and sequence in {None, key[1]}}

    @rule(steps=st.integers(1, 12))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.driver.step()

    @rule()
    def fault_of_a_step_with_several_segments(self) -> None:
        """Each sequence succeeds when it is run alone afterwards: none fails."""
        self.driver.runner.fault_if_several = True

    @rule(most=st.none() | st.integers(1, 4))
    def limit_of_the_runner(self, most: int | None) -> None:
        """What is too much at once gets through in parts."""
        self.driver.runner.most_segments = most

    @rule(blocks=st.integers(1, 6))
    def memory_is_taken(self, blocks: int) -> None:
        """In the background, sooner or later."""
        if self.memory is not None:
            self.memory.grow(blocks)

    @rule(limit=st.integers(7, 24))
    def others_take_or_free_memory(self, limit: int) -> None:
        if self.memory is not None:
            self.memory.limit = max(self.memory.num_ready, min(limit, self.driver.runner.num_blocks))
            self.memory.wanted = min(self.memory.wanted, self.memory.limit)

    @invariant()
    def accounted_for(self) -> None:
        if hasattr(self, "driver"):
            self.driver.check()

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        self.driver.run()
        self.driver.check_empty()
        for key, sequence in self.requests.items():
            answer = self.driver.answers[key]
            assert answer.failure is None
            expected = reference(sequence)
            if key in self.canceled and answer.finish_reason is None:
                assert answer.tokens == expected[: len(answer.tokens)]
                continue
            assert answer.tokens == expected
            assert answer.finish_reason == ("stop" if expected and expected[-1] in sequence.stop_ids else "length")
            assert answer.prompt is not None
            assert answer.prompt.logprobs == expected_scores(sequence)
            assert answer.prompt.num_cached_tokens <= len(sequence.prompt_ids)


TestCore = CoreMachine.TestCase
TestCore.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
