"""Which rows run in the next step: admission, pressure on the blocks, and the share of prompts in a step."""

from dataclasses import dataclass, field
from typing import NamedTuple

from services.inference.engine.runner.protocol import BLOCK_SIZE, Runner, Segment
from services.inference.engine.scheduling.block_pool import BlockPool
from services.inference.engine.scheduling.sequence import PrefillKey, Row
from services.inference.engine.scheduling.waiting import WaitingRows
from services.inference.engine.types import RowRequest
from shared.lm import SamplingParams

_PLAIN = RowRequest((0,), SamplingParams(temperature=0.0), max_tokens=1, stop_ids=frozenset())


class Work(NamedTuple):
    """Tokens `start` to `end` of a row run in this step."""

    row: Row
    start: int
    end: int


@dataclass(slots=True)
class Plan:
    """What the next step does.

    Attributes:
        work: Decoding rows, then parts of prompts.
        started: Rows that got a place for the first time.
        failed: Rows that the runner did not open; they are out already.
    """

    work: list[Work] = field(default_factory=list)
    started: list[Row] = field(default_factory=list)
    failed: list[tuple[Row, Exception]] = field(default_factory=list)


class Scheduler:
    """Gives rows places, blocks and a share of each step. See docs/explanation/engine.md for the policy and its bounds.

    Args:
        runner: Opens and closes rows, and tells its sizes.
        prefill_tokens: The most prompt tokens of a step.
        min_prefill_tokens: As many there may be in any step, however few rows decode.
    """

    def __init__(self, runner: Runner, prefill_tokens: int, min_prefill_tokens: int) -> None:
        self.pool = BlockPool(runner.num_blocks)
        self.waiting = WaitingRows()
        self.running: dict[Row, None] = {}  # the oldest first
        self.num_preemptions = 0
        self._runner = runner
        self._prefill_tokens = prefill_tokens
        self._min_prefill_tokens = min_prefill_tokens
        self._free_places = list(range(runner.max_rows - 1, -1, -1))
        self._leaders: dict[PrefillKey, Row] = {}  # rows within their prompt, for others to follow
        self._num_admitted = 0

    def plan(self) -> Plan:
        """Plan a step: a token of every decoding row, then prompts."""
        plan = Plan([work for row in list(self.running) if row.decoding and (work := self._decode(row))])
        self._admit(plan)
        self._prefill(plan.work)
        return plan

    def advance(self, work: Work) -> None:
        """Note that work is done: blocks that it filled can be found from now on."""
        row, start, end = work
        row.num_computed = end
        for index in range(start // BLOCK_SIZE, end // BLOCK_SIZE):
            self.pool.store(row.blocks[index], row.digest(index))

    def fork(self, leader: Row, follower: Row) -> None:
        """Let a follower go its own way at the end of the prompt: whole blocks stay shared, the last is copied."""
        num_full = leader.num_computed // BLOCK_SIZE
        for block in leader.blocks[:num_full]:
            self.pool.share(block)
        own = follower.blocks
        follower.blocks = leader.blocks[:num_full] + own
        follower.digests = leader.digests[:num_full]
        follower.num_computed = follower.num_cached = leader.num_computed
        follower.prompt_logprobs = leader.prompt_logprobs
        follower.leader = None
        leader.followers.remove(follower)
        if own:
            self._runner.copy_block(leader.blocks[num_full], own[0])

    def end_prefill(self, leader: Row) -> None:
        """Let nobody follow a row any more: its prompt is computed."""
        key = leader.prefill_key
        if self._leaders.get(key) is leader:
            del self._leaders[key]

    def reopen(self, row: Row) -> None:
        """Let the runner know no more of a running row than its output says: it may have drawn in a step that failed.

        Raises:
            Exception: The runner's own, where it cannot; the row is closed then.
        """
        self._runner.close_row(row.place)
        row.is_open = False
        self._runner.open_row(row.place, row.request, row.output)
        row.is_open = True

    def probe(self, block: int) -> None:
        """Open a plain row in a free place, copy a block to itself, and draw one token.

        Raises:
            Exception: The runner's own, where it cannot.
        """
        place = self._free_places[-1]  # of the row that failed, if no other
        self._runner.open_row(place, _PLAIN)
        try:
            self._runner.copy_block(block, block)
            self._runner.run([Segment(_PLAIN.prompt_ids, 0, (block,), (place,))])
        finally:
            self._runner.close_row(place)

    def remove(self, row: Row) -> None:
        """Take a row out, wherever it is: waiting, in its prompt, sharing another's, decoding."""
        if row.place < 0:
            self.waiting.remove(row)
        else:
            self._release(row)

    def _decode(self, row: Row) -> Work | None:
        """The row's newest token, if there is room for it; younger rows pay for it, and the youngest itself."""
        position = row.num_computed
        if position == len(row.blocks) * BLOCK_SIZE:
            while not self.pool.num_available:
                youngest = next(reversed(self.running))
                self._preempt(youngest)
                if youngest is row:
                    return None
            row.blocks.append(self.pool.allocate())
        return Work(row, position, position + 1)

    def _preempt(self, row: Row) -> None:
        """Take a row's blocks; it will be computed again, prompt and output."""
        self._release(row)
        row.num_computed = 0
        if not row.prompt_done:
            row.prompt_logprobs = []
        self.waiting.put_back(row)
        self.num_preemptions += 1

    def _release(self, row: Row) -> None:
        if row.leader is not None:
            row.leader.followers.remove(row)
            row.leader = None
        elif row.followers:
            self._bequeath(row)
        elif not row.output:
            self.end_prefill(row)
        self.pool.release(row.blocks)
        row.blocks = []
        if row.is_open:
            self._runner.close_row(row.place)
            row.is_open = False
        self._free_places.append(row.place)
        row.place = -1
        del self.running[row]

    def _bequeath(self, leader: Row) -> None:
        """Let the oldest follower carry on with the prompt that it shares."""
        heir, *others = leader.followers
        heir.leader, heir.followers, leader.followers = None, others, []
        for other in others:
            other.leader = heir
        heir.blocks, leader.blocks = leader.blocks, heir.blocks
        heir.num_computed = heir.num_cached = leader.num_computed
        heir.digests, heir.prompt_logprobs = leader.digests, leader.prompt_logprobs
        self._leaders[heir.prefill_key] = heir

    def _admit(self, plan: Plan) -> None:
        """Give places to those whose turn it is, as long as there are places and blocks."""
        while self._free_places and (row := self.waiting.head) is not None:
            leader = None if row.output else self._leaders.get(row.prefill_key)
            found = self._find(row) if leader is None else []
            num_new = _num_blocks(row.num_tokens) - len(found) if leader is None else row.num_tokens % BLOCK_SIZE > 0
            taken = num_new + sum(self.pool.is_idle(block) for block in found)
            # Every running row may need a block soon: leave them one each, or the newcomer is preempted at once.
            if self.running and taken + len(self.running) > self.pool.num_available:
                return
            self.waiting.pop()
            try:
                self._runner.open_row(self._free_places[-1], row.request, row.output)
            except Exception as error:  # the row's own, or the runner's: no more of them fail before it is probed
                plan.failed.append((row, error))
                return
            self._start(row, leader, found, num_new)
            if row.age < 0:
                row.age = self._num_admitted
                self._num_admitted += 1
                plan.started.append(row)

    def _start(self, row: Row, leader: Row | None, found: list[int], num_new: int) -> None:
        row.place, row.is_open = self._free_places.pop(), True
        self.running[row] = None
        for block in found:
            self.pool.share(block)
        row.blocks = found + [self.pool.allocate() for _ in range(num_new)]
        row.num_computed = len(found) * BLOCK_SIZE
        if leader is not None:
            row.leader = leader
            leader.followers.append(row)
        elif not row.output:
            row.num_cached = row.num_computed
            self._leaders[row.prefill_key] = row

    def _find(self, row: Row) -> list[int]:
        """Blocks of others that hold the row's first tokens, all but the last one: its logits are needed."""
        found: list[int] = []
        if row.scores_prompt:
            return found
        for index in range((row.num_tokens - 1) // BLOCK_SIZE):
            block = self.pool.find(row.digest(index))
            if block is None:
                break
            found.append(block)
        return found

    def _prefill(self, work: list[Work]) -> None:
        """Add parts of prompts: half of the room to the oldest row, the rest to those that need least."""
        rows = [row for row in self.running if row.leader is None and not row.decoding]
        if not rows:
            return
        for row in rows:
            self._adopt(row)
        left = {row: row.num_tokens - row.num_computed for row in rows}
        budget = self._prefill_budget(len(work))
        oldest, *others = rows
        others.sort(key=left.__getitem__)
        half = -(-budget // 2)
        ends = {oldest: self._chunk_end(oldest, half if budget <= BLOCK_SIZE else _num_blocks(half) * BLOCK_SIZE)}
        coming = _filled(oldest, ends[oldest])
        budget -= ends[oldest] - oldest.num_computed
        for row in others:
            if budget and not _is_coming(row, coming):
                ends[row] = self._chunk_end(row, budget)
                coming.update(_filled(row, ends[row]))
                budget -= ends[row] - row.num_computed
        ends[oldest] = self._chunk_end(oldest, ends[oldest] - oldest.num_computed + budget)
        work.extend(Work(row, row.num_computed, end) for row, end in ends.items())

    def _prefill_budget(self, num_decoding: int) -> int:
        """Prompt tokens of the step: where rows wait for their next token, about as many as they are."""
        if num_decoding == 0:
            return self._prefill_tokens
        share = _num_blocks(num_decoding) * BLOCK_SIZE
        return min(self._prefill_tokens, max(share, self._min_prefill_tokens))

    def _adopt(self, row: Row) -> None:
        """Use blocks that another row has filled since this one was admitted."""
        if row.scores_prompt or row.num_computed % BLOCK_SIZE:
            return
        for index in range(row.num_computed // BLOCK_SIZE, (row.num_tokens - 1) // BLOCK_SIZE):
            block = self.pool.find(row.digest(index))
            if block is None:
                return
            self.pool.share(block)
            self.pool.release([row.blocks[index]])
            row.blocks[index] = block
            row.num_computed += BLOCK_SIZE
            if not row.output:
                row.num_cached = row.num_computed

    def _chunk_end(self, row: Row, num_tokens: int) -> int:
        """Where a chunk of at most so many tokens ends: with the prompt, or with a block if it reaches one's end."""
        end = row.num_computed + num_tokens
        if end >= row.num_tokens:
            return row.num_tokens
        whole = end - end % BLOCK_SIZE
        return whole if whole > row.num_computed else end


def _num_blocks(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_SIZE)


def _filled(row: Row, end: int) -> set[bytes]:
    """Names of the blocks that are full when the row is computed up to `end`."""
    return {row.digest(index) for index in range(row.num_computed // BLOCK_SIZE, end // BLOCK_SIZE)}


def _is_coming(row: Row, coming: set[bytes]) -> bool:
    """Whether the row's next block is being filled in this step, for it to be found in the next."""
    index = row.num_computed // BLOCK_SIZE
    if row.scores_prompt or row.num_computed % BLOCK_SIZE or index >= (row.num_tokens - 1) // BLOCK_SIZE:
        return False
    return row.digest(index) in coming
