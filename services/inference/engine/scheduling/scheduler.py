"""Which sequences run in the next step: admission, pressure on the blocks, and prompts that are computed once."""

from dataclasses import dataclass, field

from services.inference.engine.runner.protocol import Runner
from services.inference.engine.scheduling.block_pool import BlockPool
from services.inference.engine.scheduling.prefill import PrefillScheduler, TokensBeside
from services.inference.engine.scheduling.sequence import PrefillKey, ScheduledSequence, Sequence, Status
from services.inference.engine.scheduling.waiting import WaitingQueue
from services.inference.engine.types import BLOCK_SIZE, num_blocks_of


@dataclass(slots=True)
class ScheduledBatch:
    """What the next step does.

    Attributes:
        scheduled: Decoding sequences, then parts of prompts.
        admitted: Sequences that were admitted for the first time.
        failed: Sequences that the runner could not open; they are finished.
    """

    scheduled: list[ScheduledSequence] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    failed: list[tuple[Sequence, Exception]] = field(default_factory=list)


class Scheduler:
    """Gives sequences slots, blocks and a share of each step. See docs/explanation/engine.md for the policy.

    Args:
        runner: Opens and closes slots; its sizes are the limits.
        prefill_tokens: The most prompt tokens of a step.
        min_prefill_tokens: As many are allowed in any step, however few sequences decode.
        tokens_beside: See `PrefillScheduler`.
    """

    def __init__(
        self, runner: Runner, prefill_tokens: int, min_prefill_tokens: int, tokens_beside: TokensBeside
    ) -> None:
        self.pool = BlockPool(runner.num_blocks, runner.block_memory)
        self.waiting = WaitingQueue()
        self.running: dict[Sequence, None] = {}  # the oldest first
        self.free_slots = list(range(runner.num_slots - 1, -1, -1))
        self.num_preemptions = 0
        self._runner = runner
        self._prefills = PrefillScheduler(self.pool, prefill_tokens, min_prefill_tokens, tokens_beside)
        self._leaders: dict[PrefillKey, Sequence] = {}  # sequences within their prompt, for others to follow
        self._num_admitted = 0

    def schedule(self) -> ScheduledBatch:
        """Schedule a step: a token of every decoding sequence, then prompts."""
        decoding = [
            scheduled
            for sequence in list(self.running)
            if sequence.is_decoding and (scheduled := self._schedule_decode(sequence))
        ]
        batch = ScheduledBatch(decoding)
        self._admit(batch)
        prefilling = [one for one in self.running if one.leader is None and not one.is_decoding]
        batch.scheduled += self._prefills.schedule(prefilling, [one.sequence for one in decoding])
        self.pool.grow_ahead()
        self.pool.give_back()
        return batch

    def advance(self, scheduled: ScheduledSequence) -> None:
        """Record that tokens are computed: blocks that they filled can be cache hits from now on."""
        sequence, start, end = scheduled
        sequence.num_computed = end
        for index in range(start // BLOCK_SIZE, end // BLOCK_SIZE):
            self.pool.register(sequence.blocks[index], sequence.digest(index))

    def fork(self, leader: Sequence, follower: Sequence) -> None:
        """Separate a follower at the end of the prompt: whole blocks stay shared, the last is copied.

        Raises:
            Exception: The runner's own, where it cannot copy.
        """
        num_full = leader.num_computed // BLOCK_SIZE
        for block in leader.blocks[:num_full]:
            self.pool.add_reference(block)
        own = follower.blocks
        follower.blocks = leader.blocks[:num_full] + own
        follower.digests = leader.digests[:num_full]
        follower.num_computed = follower.num_cached = leader.num_computed
        follower.prompt_logprobs = leader.prompt_logprobs
        follower.leader = None
        leader.followers.remove(follower)
        if own:
            self._runner.copy_block(leader.blocks[num_full], own[0])

    def end_prefill(self, leader: Sequence) -> None:
        """Let no more sequences follow this one: its prompt is computed."""
        key = leader.prefill_key
        if self._leaders.get(key) is leader:
            del self._leaders[key]

    def reopen(self, sequence: Sequence) -> None:
        """Reset a running sequence's slot to its output: it may have been sampled for in a step that failed.

        Raises:
            Exception: The runner's own, where it cannot; the slot is free then.
        """
        slot = sequence.slot
        self._close_slot(sequence)
        self._runner.open_slot(slot, sequence.request, sequence.output)
        sequence.slot = self.free_slots.pop()

    def finish(self, sequence: Sequence) -> None:
        """Remove a sequence, wherever it is: waiting, in its prompt, sharing another's, decoding."""
        if sequence.status is Status.RUNNING:
            self._release(sequence)
        else:
            self.waiting.remove(sequence)
        sequence.status = Status.FINISHED

    def _schedule_decode(self, sequence: Sequence) -> ScheduledSequence | None:
        """The sequence's newest token. If it needs a block, younger sequences are preempted, the youngest may be it."""
        position = sequence.num_computed
        if position == len(sequence.blocks) * BLOCK_SIZE:
            while not self.pool.has_room(1, wait=True):
                youngest = next(reversed(self.running))
                self._preempt(youngest)
                if youngest is sequence:
                    return None
            sequence.blocks.append(self.pool.allocate())
        return ScheduledSequence(sequence, position, position + 1)

    def _preempt(self, sequence: Sequence) -> None:
        """Take a sequence's blocks; prompt and output will be computed again."""
        self._release(sequence)
        sequence.status = Status.WAITING
        sequence.num_computed = 0
        if not sequence.prompt_reported:
            sequence.prompt_logprobs = []
        self.waiting.put_back(sequence)
        self.num_preemptions += 1

    def _release(self, sequence: Sequence) -> None:
        """Free all that a running sequence holds."""
        if sequence.leader is not None:
            sequence.leader.followers.remove(sequence)
            sequence.leader = None
        elif sequence.followers:
            self._promote_follower(sequence)
        elif not sequence.output:
            self.end_prefill(sequence)
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        if sequence.slot >= 0:
            self._close_slot(sequence)
        del self.running[sequence]

    def _close_slot(self, sequence: Sequence) -> None:
        self._runner.close_slot(sequence.slot)
        self.free_slots.append(sequence.slot)
        sequence.slot = -1

    def _promote_follower(self, leader: Sequence) -> None:
        """Let the oldest follower take over the prompt that it shares."""
        follower, *others = leader.followers
        follower.leader, follower.followers, leader.followers = None, others, []
        for other in others:
            other.leader = follower
        follower.blocks, leader.blocks = leader.blocks, follower.blocks
        follower.num_computed = follower.num_cached = leader.num_computed
        follower.digests, follower.prompt_logprobs = leader.digests, leader.prompt_logprobs
        self._leaders[follower.prefill_key] = follower

    def _admit(self, batch: ScheduledBatch) -> None:
        """Admit waiting sequences in their order, as long as there are slots and blocks."""
        while self.free_slots and (sequence := self.waiting.head) is not None:
            leader = None if sequence.output else self._leaders.get(sequence.prefill_key)
            if leader is None:
                hits = self._cache_hits(sequence)
                num_new = num_blocks_of(sequence.num_tokens) - len(hits)
            else:
                hits = []
                num_new = int(sequence.num_tokens % BLOCK_SIZE > 0)  # the block that the two will not share
            num_taken = num_new + sum(self.pool.is_unused(block) for block in hits)
            # Every running sequence may need a block soon: leave them one each, or the new one is preempted at once.
            # Alone, it has as many as it needs at the latest when those of others are evicted.
            if not self.pool.has_room(num_taken + len(self.running), wait=not self.running) and self.running:
                return
            self.waiting.pop()
            try:
                self._runner.open_slot(self.free_slots[-1], sequence.request, sequence.output)
            except Exception as error:  # the sequence's or the runner's: admit no more before the runner is probed
                sequence.status = Status.FINISHED
                batch.failed.append((sequence, error))
                return
            self._start(sequence, leader, hits, num_new)
            if sequence.admission < 0:
                sequence.admission = self._num_admitted
                self._num_admitted += 1
                batch.admitted.append(sequence)

    def _start(self, sequence: Sequence, leader: Sequence | None, hits: list[int], num_new: int) -> None:
        sequence.slot, sequence.status = self.free_slots.pop(), Status.RUNNING
        self.running[sequence] = None
        for block in hits:
            self.pool.add_reference(block)
        sequence.blocks = hits + [self.pool.allocate() for _ in range(num_new)]
        sequence.num_computed = len(hits) * BLOCK_SIZE
        if leader is not None:
            sequence.leader = leader
            leader.followers.append(sequence)
        elif not sequence.output:
            sequence.num_cached = sequence.num_computed
            self._leaders[sequence.prefill_key] = sequence

    def _cache_hits(self, sequence: Sequence) -> list[int]:
        """Blocks in the prefix cache that hold the sequence's first tokens."""
        hits: list[int] = []
        if sequence.needs_prompt_logprobs:
            return hits
        for index in range(sequence.num_cacheable_blocks):
            block = self.pool.lookup(sequence.digest(index))
            if block is None:
                break
            hits.append(block)
        return hits
