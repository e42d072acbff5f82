"""The lock protocol as a transition system: what clients, nodes, network and bad luck may do next.

Reductions, none of which hides a behaviour that a promise of this package is about:

- nodes are interchangeable, so a state is kept with its nodes sorted;
- a reply is read where it decides something, since nothing else depends on when it is read;
- a round ends the instant the last reply it needs is given: later would promise others less;
- a message is never lost: one that never arrives is the same, and is explored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations

from celery_redlock.redlock.protocol.quorum import Verdict, majority

from . import rounds, scripts
from .explorer import Step
from .promises import Promise
from .state import (
    CONFIRM,
    EXTEND,
    FREE,
    GONE,
    GRANT,
    MESSAGES,
    NO_TOKEN,
    RELEASE,
    Client,
    Luck,
    Node,
    Phase,
    State,
    new_round,
    put,
    with_node,
)
from .variants import Admit, Confirm, Drop, Lost, Rules, Scope
from .wording import sentence

Move = tuple[Step, State]

ROUND_OF = {GRANT: Phase.GRANTING, CONFIRM: Phase.CONFIRMING, EXTEND: Phase.EXTENDING}
"""The phase in which a reply to a message is waited for."""
ENDS = {Verdict.REACHED: Phase.EXTENDED, Verdict.LOST: Phase.LOST}
"""The phase after a verdict on an extension."""


class LockProtocol:
    """A model for `explorer.explore`: rules to follow, a scope to do it in, promises to keep."""

    def __init__(self, rules: Rules, scope: Scope, promises: Iterable[Promise]) -> None:
        self.rules = rules
        self.scope = scope
        self.promises = tuple(promises)
        self.retried = {attempt.retry_of for attempt in scope.attempts}
        self.owners = scope.owners
        self.confirmations = majority(scope.nodes) - (not rules.confirmed_by_majority)
        self.proposals = (0,) if scope.clocks is None else scripts.EXTREME_PROPOSALS
        self.instants = (0,) if scope.clocks is None else scope.clocks.instants

    def initial(self) -> State:
        """Return the state before anybody asked for anything."""
        scope, nothing = self.scope, (0,) * len(self.scope.attempts)
        expiries = -1 if scope.expiries is None else scope.expiries
        offsets = (0,) * scope.nodes if scope.clocks is None else scope.clocks.offsets
        return State(
            Luck(expiries, scope.duplicates, scope.forgetting, self.instants[0]),
            tuple(Client(Phase.IDLE, 0, 0, 0) for _ in scope.attempts),
            tuple(Node(FREE, 0, nothing, nothing, offset, 0) for offset in offsets),
        )

    def canonical(self, state: State) -> State:
        """Return the state with its nodes in order: they differ in nothing but their numbers."""
        return State(state.luck, state.clients, tuple(sorted(state.nodes)))

    def broken_promise(self, state: State) -> str | None:
        """Return the name of the first promise that this state breaks, or None."""
        quorum = self.scope.quorum
        return next((kept.__name__ for kept in self.promises if not kept(state, quorum)), None)

    def landmark(self, state: State) -> tuple[Phase, ...]:
        """Return how far each attempt is."""
        return tuple(client.phase for client in state.clients)

    def describe(self, step: Step, after: State) -> str:
        """Return a step as a sentence."""
        return sentence(step, after, [attempt.name for attempt in self.scope.attempts])

    def successors(self, state: State) -> Iterator[Move]:
        """Yield everything that can happen next."""
        for attempt, client in enumerate(state.clients):
            yield from self._acts(state, attempt, client)
        for number, node in enumerate(state.nodes):
            for attempt, wire in enumerate(node.wire):
                if wire:
                    yield from self._arrivals(state, number, node, attempt)
            yield from self._mishaps(state, number, node)
        yield from self._admissions(state)
        later = [instant for instant in self.instants if instant > state.luck.now]
        if later:
            yield ("time passes", -1, -1), state._replace(luck=state.luck._replace(now=later[0]))

    # ---- clients

    def _acts(self, state: State, attempt: int, client: Client) -> Iterator[Move]:
        """What a client may do by itself."""
        phase = client.phase
        if phase is Phase.IDLE:
            yield from self._start(state, attempt)
        elif phase is Phase.GRANTING:
            yield from self._decide(state, attempt, client)
        if phase is Phase.GRANTING or phase is Phase.CONFIRMING:
            yield from self._give_up(state, attempt, client)
        elif Phase.HELD <= phase <= Phase.EXTENDED:
            yield from self._hold(state, attempt, client)

    def _start(self, state: State, attempt: int) -> Iterator[Move]:
        """ACQUIRE 1 and 2: grants go out to all nodes."""
        mine, clients = self.scope.attempts[attempt], state.clients
        if mine.drops is not None:
            yield from self._drop(state, attempt, mine.drops)
            return
        if mine.retry_of is not None and clients[mine.retry_of].phase is not Phase.FAILED:
            return
        if mine.supersedes is not None and clients[mine.supersedes].phase < Phase.HELD:
            return
        for proposal in self.proposals:
            begun = Client(Phase.GRANTING, 0, _bar(state, 0), proposal)
            yield ("starts", attempt, -1), new_round(state, attempt, begun, GRANT)

    def _drop(self, state: State, attempt: int, owner: int) -> Iterator[Move]:
        """RELEASE of a lease by others: T is the highest floor that a majority reports under it."""
        if state.clients[owner].phase < Phase.HELD:
            return
        drop, quorum = self.rules.drop, self.scope.quorum
        for size in range(quorum, self.scope.nodes + 1):
            for reporting in combinations(range(self.scope.nodes), size):
                stored = tuple(
                    node[:2] if number in reporting else None
                    for number, node in enumerate(state.nodes)
                )
                naming = sum(one is not None and one[0] == owner for one in stored)
                if naming < (1 if drop is Drop.WITHOUT_MAJORITY else quorum):
                    continue
                token = 0
                if drop is Drop.ALL_FLOORS:
                    token = max(one[1] for one in stored if one)
                elif drop is not Drop.BY_CLOCK:
                    token = rounds.token_of_drop(stored, owner)
                begun = Client(Phase.RELEASING, token, 0, 0)
                yield ("drops", attempt, -1), new_round(state, attempt, begun, RELEASE)

    def _decide(self, state: State, attempt: int, client: Client) -> Iterator[Move]:
        """ACQUIRE 3: whichever majority of grants was read, T is their maximum."""
        granted = tuple([node.replies[attempt] for node in state.nodes])
        for decision in rounds.decisions(granted):
            yield ("decides", attempt, -1), self._decided(state, attempt, client, decision)

    def _decided(
        self, state: State, attempt: int, client: Client, decision: rounds.Decision
    ) -> State:
        """Return the state after T was taken from the counted grants."""
        token, already, confirmed, behind = decision
        client = client._replace(token=token)
        if self.rules.confirm is Confirm.NEVER_ASKED or already >= self.confirmations:
            return new_round(state, attempt, client._replace(phase=Phase.HELD))
        after = new_round(state, attempt, client._replace(phase=Phase.CONFIRMING))
        for number in confirmed:
            node = after.nodes[number]
            node = node._replace(replies=put(node.replies, attempt, token))
            after = with_node(after, number, node)
        for number in behind:
            node = after.nodes[number]
            node = node._replace(wire=put(node.wire, attempt, node.wire[attempt] | CONFIRM))
            after = with_node(after, number, node)
        return after

    def _give_up(self, state: State, attempt: int, client: Client) -> Iterator[Move]:
        """ACQUIRE 5: too few grants, a timeout, a dead process."""
        if self.scope.releases or attempt in self.retried:
            failed = client._replace(phase=Phase.FAILED, bar=0)
            message = RELEASE if self.scope.releases else 0
            yield ("gives up", attempt, -1), new_round(state, attempt, failed, message)

    def _hold(self, state: State, attempt: int, client: Client) -> Iterator[Move]:
        """EXTEND and RELEASE go out to all nodes."""
        if self.scope.attempts[attempt].extends and client.phase is Phase.HELD:
            extending = client._replace(phase=Phase.EXTENDING, bar=_bar(state, client.token))
            yield ("sends an extension", attempt, -1), new_round(state, attempt, extending, EXTEND)
        if self.scope.releases:
            done = client._replace(phase=Phase.RELEASING, bar=0)
            yield ("sends its release", attempt, -1), new_round(state, attempt, done, RELEASE)

    # ---- nodes

    def _arrivals(self, state: State, number: int, node: Node, attempt: int) -> Iterator[Move]:
        """Any message in flight arrives; no grant at a guarded node, no release too early."""
        wire = node.wire[attempt]
        for message in MESSAGES:
            if not wire & message:
                continue
            if message == GRANT and state.luck.now < node.opens:
                continue
            if message == RELEASE and wire & GRANT and self.rules.release_follows_grant:
                continue
            yield from self._arrive(state, number, attempt, message)

    def _arrive(self, state: State, number: int, attempt: int, message: int) -> Iterator[Move]:
        """One message arrives; of the replies to a duplicated grant, either may be read."""
        node, luck = state.nodes[number], state.luck
        delivered = put(node.wire, attempt, node.wire[attempt] & ~message)
        for verb, owner, floor, reply in self._answers(state, node, attempt, message):
            step = (verb, attempt, number)
            after = Node(owner, floor, delivered, node.replies, node.offset, node.opens)
            yield step, self._answered(state, number, after, attempt, message, reply)
            if message == GRANT and reply and node.replies[attempt]:
                yield step, with_node(state, number, after)
            if message == GRANT and luck.duplicates:
                poorer = state._replace(luck=luck._replace(duplicates=luck.duplicates - 1))
                again = after._replace(wire=node.wire)
                yield step, self._answered(poorer, number, again, attempt, message, reply)

    def _answers(
        self, state: State, node: Node, attempt: int, message: int
    ) -> Iterable[scripts.Answer]:
        """Return what a node may do with a message."""
        client, rules, scope = state.clients[attempt], self.rules, self.scope
        owner, superseded = self.owners[attempt], scope.attempts[attempt].supersedes
        if message == GRANT:
            highest_floor = self._highest_floor(state, attempt)
            tokens: Iterable[int] = (NO_TOKEN,)
            if scope.attempts[attempt].gets_token:
                tokens = scripts.proposed_tokens(node, client, state.luck.now, scope)
            return scripts.grant(node, owner, superseded, highest_floor, rules, tokens)
        if message == CONFIRM:
            return (scripts.confirm(node, owner, client.token, rules),)
        if message == EXTEND:
            return (scripts.extend(node, owner, client.token, rules),)
        return (scripts.release(node, owner, superseded, client, rules),)

    def _highest_floor(self, state: State, attempt: int) -> int | None:
        """Return the floor up to which a node grants, None for any."""
        mine = self.scope.attempts[attempt]
        heeds_floor = mine.is_handed_over and self.rules.hand_over_heeds_floor
        if mine.supersedes is None or not heeds_floor:
            return None
        return state.clients[mine.supersedes].token

    def _answered(
        self, state: State, number: int, node: Node, attempt: int, message: int, reply: int
    ) -> State:
        """Return the state after a reply: kept if its round is on, acted on if it is the last."""
        client = state.clients[attempt]
        if not reply or client.phase is not ROUND_OF.get(message):
            return with_node(state, number, node)
        node = node._replace(replies=put(node.replies, attempt, reply))
        after = with_node(state, number, node)
        if message == CONFIRM and self._is_confirmed(after, attempt):
            return new_round(after, attempt, client._replace(phase=Phase.HELD))
        if message == EXTEND and (phase := self._end_of_extension(after, attempt)):
            return new_round(after, attempt, client._replace(phase=phase))
        return after

    def _is_confirmed(self, state: State, attempt: int) -> bool:
        """Return whether enough nodes have the token."""
        confirmed = sum(node.replies[attempt] != 0 for node in state.nodes)
        if not self.rules.confirmed_by_majority:
            return confirmed >= self.confirmations
        return rounds.is_confirmed(self.scope.nodes, confirmed)

    def _end_of_extension(self, state: State, attempt: int) -> Phase | None:
        """Return how an extension ends, None if it goes on."""
        replies = [node.replies[attempt] for node in state.nodes]
        gone = replies.count(GONE)
        if gone and self.rules.lost is Lost.ONE_RAISED_FLOOR:
            return Phase.LOST
        extended = len(replies) - gone - replies.count(0)
        return ENDS.get(rounds.extension(len(replies), extended, gone))

    def _mishaps(self, state: State, number: int, node: Node) -> Iterator[Move]:
        """A lock expires; a node forgets everything."""
        luck = state.luck
        if node.owner != FREE and luck.expiries:
            left = luck if luck.expiries < 0 else luck._replace(expiries=luck.expiries - 1)
            fewer = State(left, state.clients, state.nodes)
            expired = Node(FREE, node.floor, node.wire, node.replies, node.offset, node.opens)
            yield ("lets the lock expire", -1, number), with_node(fewer, number, expired)
        if luck.forgetting:
            opens = int(self.scope.admissions)
            if self.scope.clocks is not None:
                opens = luck.now + self.scope.clocks.guard
            fewer = state._replace(luck=luck._replace(forgetting=luck.forgetting - 1))
            empty = node._replace(owner=FREE, floor=0, opens=opens)
            yield ("forgets everything", -1, number), with_node(fewer, number, empty)

    def _admissions(self, state: State) -> Iterator[Move]:
        """The operator admits all nodes that wait, by what the nodes hold at this moment."""
        if not self.scope.admissions:
            return
        now, admit = state.luck.now, self.rules.admit
        waiting = [node for node in state.nodes if node.opens > now]
        shows_lock = any(node.owner != FREE for node in state.nodes) or any(
            node.floor for node in waiting
        )
        # A node that waits does not grant: it had given this reply before it forgot.
        is_counted_on = any(
            node.replies[attempt] and client.phase in (Phase.GRANTING, Phase.CONFIRMING)
            for node in waiting
            for attempt, client in enumerate(state.clients)
        )
        if not waiting or (shows_lock and admit is not Admit.AT_ANY_TIME):
            return
        if not is_counted_on or admit is not Admit.WITHOUT_LOCKS_AND_ATTEMPTS:
            nodes = tuple(node._replace(opens=0) for node in state.nodes)
            yield ("nodes are admitted", -1, -1), state._replace(nodes=nodes)


def _bar(state: State, token: int) -> int:
    """Return the highest completed token above this one, 0 if there is none."""
    completed = (each.token for each in state.clients if each.phase >= Phase.HELD)
    return max((each for each in completed if each > token), default=0)
