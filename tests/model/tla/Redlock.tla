------------------------------ MODULE Redlock ------------------------------
(***************************************************************************)
(* The lock protocol in TLA+, from its description (explanation/protocol   *)
(* in the documentation), for those who know this language.                *)
(*                                                                         *)
(* Each attempt runs ACQUIRE, EXTEND and RELEASE.  Messages overtake each  *)
(* other freely and need never arrive.  A lock may expire at any instant.  *)
(* The rules and the world are constants: tlc.py gives those of each row   *)
(* of the table in that description.                                       *)
(***************************************************************************)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS Nodes,        \* the servers
          Attempts      \* who tries to acquire: numbers from 0

CONSTANTS               \* ---- the rules; the first value of each is the protocol's
    ConfirmRule,        \* "owner and floor", "owner", "none" or "never asked"
    Confirmations,      \* how many nodes confirm a token: a majority, or one less
    HealHeedsFloor,     \* whether an extension sets an absent lock only below its token
    VoteHeedsFloor,     \* whether a node with a higher floor refuses an extension
    OthersCountAsLost,  \* FALSE: only higher floors say that a lease is lost
    LostAfter,          \* after how many of those: a majority, or one
    ReleaseRaisesFloor, \* whether a release leaves a floor above its token behind
    ReleaseFollowsGrant,\* whether a release travels behind its grant
    SupersedesAnyone,   \* FALSE: only the named owner is replaced
    HandOverHeedsFloor, \* whether a floor above the lease's token refuses its hand-over
    AdmitRule           \* "no locks, no attempts", "no locks" or "at any time"

CONSTANTS               \* ---- the world
    Extending,          \* attempts that send an extension
    Tokenless,          \* attempts that are reservations without a token
    HandedOver,         \* attempts that are sent by the holder whom they supersede
    RetryOf,            \* for each attempt: the one that must have failed before, or None
    Owner,              \* for each attempt: the one whose owner it uses, mostly itself
    Supersedes,         \* for each attempt: the one whose lock it takes up, or None
    Releases,           \* whether failed attempts and leases send a release
    Expiries,           \* how many locks may expire; None: any number
    Duplicates,         \* how many grants are delivered once more
    Leap,               \* a granted token is at most the floor and this
    Forgetting,         \* how many times a node loses its memory
    Admissions,         \* whether a node that forgot waits for an operator
    HasClocks,          \* whether tokens are proposed from wall clocks
    Offset,             \* for each node: how far its clock is ahead, in ticks
    MaxSkew,            \* half the width of the clamp, in ticks
    Guard,              \* how long a node that forgot does not vote, in ticks
    Instants            \* the times at which things happen

None == -1
NoReply == 0
Gone == -1              \* reply to an extension: the lease is overtaken here
NoToken == -2           \* reply to a grant that gives no token
TokensPerTick == 16     \* more than there are grants
Quorum == Cardinality(Nodes) \div 2 + 1
Symmetry == Permutations(Nodes)

VARIABLES
    holder,             \* for each node: whose the lock is, or None
    floor,              \* for each node: the highest token that it knows
    opens,              \* for each node: when it votes again, after it forgot
    wire,               \* messages on their way: <<kind, attempt, node>>
    reply,              \* for each attempt and node: the reply in the present round
    phase, token,       \* for each attempt: how far it is, and its token
    bar,                \* the highest token completed before its present round began
    isAhead,            \* whether its clock is ahead of all clamps, else behind them
    now, expiries, duplicates, forgetting

node == <<holder, floor>>
client == <<phase, token, bar, isAhead>>
luck == <<expiries, duplicates, forgetting>>
vars == <<holder, floor, opens, wire, reply, phase, token, bar, isAhead, now, luck>>

Max(S) == CHOOSE x \in S : \A y \in S : x >= y
Later(x, y) == IF x > y THEN x ELSE y

IsCompleted(a) == phase[a] \in {"held", "extending", "extended", "lost", "releasing"}
IsHolding(a) == phase[a] \in {"held", "extending", "extended"}
HighestAbove(t) ==
    Max({0} \cup {token[a] : a \in {b \in Attempts : IsCompleted(b) /\ token[b] > t}})
Votes(n) == opens[n] <= now
IsRetried(a) == \E b \in Attempts : RetryOf[b] = a
RepliedWith(a, r) == {n \in Nodes : reply[a][n] = r}

Init ==
    /\ holder = [n \in Nodes |-> None]
    /\ floor = [n \in Nodes |-> 0]
    /\ opens = [n \in Nodes |-> 0]
    /\ wire = {}
    /\ reply = [a \in Attempts |-> [n \in Nodes |-> NoReply]]
    /\ phase = [a \in Attempts |-> "idle"]
    /\ token = [a \in Attempts |-> 0]
    /\ bar = [a \in Attempts |-> 0]
    /\ isAhead = [a \in Attempts |-> FALSE]
    /\ now = CHOOSE t \in Instants : \A u \in Instants : t <= u
    /\ expiries = Expiries
    /\ duplicates = Duplicates
    /\ forgetting = Forgetting

-----------------------------------------------------------------------------
(* Clients *)

\* Forget the replies, and write these messages, one or none, to every node.
NewRound(a, kinds) ==
    /\ reply' = [reply EXCEPT ![a] = [n \in Nodes |-> NoReply]]
    /\ wire' = wire \cup (kinds \X {a} \X Nodes)

Becomes(a, p) == phase' = [phase EXCEPT ![a] = p]
ByClients == UNCHANGED <<node, opens, now, luck>>

Start(a) ==
    /\ phase[a] = "idle"
    /\ RetryOf[a] # None => phase[RetryOf[a]] = "failed"
    /\ Supersedes[a] # None => IsCompleted(Supersedes[a])
    /\ \E ahead \in IF HasClocks THEN BOOLEAN ELSE {FALSE} :
           isAhead' = [isAhead EXCEPT ![a] = ahead]
    /\ Becomes(a, "granting")
    /\ bar' = [bar EXCEPT ![a] = HighestAbove(0)]
    /\ NewRound(a, {"GRANT"})
    /\ UNCHANGED token /\ ByClients

\* The token is the highest of the grants that were read, of any majority. Where it was granted, it
\* is confirmed already; the others are asked to confirm it.
Decide(a, those) ==
    LET highest == Max({reply[a][n] : n \in those})
        agreed == {n \in those : reply[a][n] = highest}
        isDone == \/ highest = NoToken
                  \/ ConfirmRule = "never asked"
                  \/ Cardinality(agreed) >= Confirmations
    IN  /\ phase[a] = "granting"
        /\ Cardinality(those) >= Quorum
        /\ \A n \in those : reply[a][n] # NoReply
        /\ token' = [token EXCEPT ![a] = IF highest = NoToken THEN 0 ELSE highest]
        /\ IF isDone
           THEN Becomes(a, "held") /\ NewRound(a, {})
           ELSE /\ Becomes(a, "confirming")
                /\ reply' = [reply EXCEPT ![a] =
                       [n \in Nodes |-> IF n \in agreed THEN highest ELSE NoReply]]
                /\ wire' = wire \cup ({"CONFIRM"} \X {a} \X (those \ agreed))
        /\ UNCHANGED <<bar, isAhead>> /\ ByClients

EndRound(a, before, after, r, enough) ==
    /\ phase[a] = before
    /\ Cardinality(RepliedWith(a, r)) >= enough
    /\ Becomes(a, after)
    /\ NewRound(a, {})
    /\ UNCHANGED <<token, bar, isAhead>> /\ ByClients

Confirmed(a) == EndRound(a, "confirming", "held", token[a], Confirmations)
Extended(a) == EndRound(a, "extending", "extended", token[a], Quorum)
Lost(a) == EndRound(a, "extending", "lost", Gone, LostAfter)

\* Too few grants, a timeout, a dead process.
GiveUp(a) ==
    /\ Releases \/ IsRetried(a)
    /\ phase[a] \in {"granting", "confirming"}
    /\ Becomes(a, "failed")
    /\ bar' = [bar EXCEPT ![a] = 0]
    /\ NewRound(a, IF Releases THEN {"RELEASE"} ELSE {})
    /\ UNCHANGED <<token, isAhead>> /\ ByClients

Extend(a) ==
    /\ a \in Extending
    /\ phase[a] = "held"
    /\ Becomes(a, "extending")
    /\ bar' = [bar EXCEPT ![a] = HighestAbove(token[a])]
    /\ NewRound(a, {"EXTEND"})
    /\ UNCHANGED <<token, isAhead>> /\ ByClients

Release(a) ==
    /\ Releases
    /\ IsHolding(a)
    /\ Becomes(a, "releasing")
    /\ bar' = [bar EXCEPT ![a] = 0]
    /\ NewRound(a, {"RELEASE"})
    /\ UNCHANGED <<token, isAhead>> /\ ByClients

-----------------------------------------------------------------------------
(* Nodes *)

\* A message arrives; its reply counts while its round goes on.
Arrives(kind, a, n) == <<kind, a, n>> \in wire /\ wire' = wire \ {<<kind, a, n>>}
Reply(a, n, round, r) ==
    reply' = IF r # NoReply /\ phase[a] = round THEN [reply EXCEPT ![a][n] = r] ELSE reply
ByNodes == UNCHANGED <<client, opens, now, expiries, forgetting>>
Holder(n, a) == holder' = [holder EXCEPT ![n] = a]
Floor(n, t) == floor' = [floor EXCEPT ![n] = t]

MayReplace(n, a) ==
    \/ holder[n] = None
    \/ Supersedes[a] # None /\ (SupersedesAnyone \/ holder[n] = Supersedes[a])
IsTooLate(n, a) ==
    a \in HandedOver /\ HandOverHeedsFloor /\ floor[n] > token[Supersedes[a]]
Proposed(a, n) ==
    IF HasClocks
    THEN LET clamp == now + Offset[n] + (IF isAhead[a] THEN MaxSkew ELSE -MaxSkew)
         IN  {Later(floor[n] + 1, clamp * TokensPerTick)}
    ELSE floor[n] + 1 .. floor[n] + Leap

\* Of the replies to two copies of a grant, either may be the one that is read.
ReplyToGrant(a, n, r) ==
    \/ Reply(a, n, "granting", r)
    \/ reply[a][n] # NoReply /\ UNCHANGED reply

OnGrant(a, n) ==
    /\ Votes(n)
    /\ \/ Arrives("GRANT", a, n) /\ UNCHANGED duplicates
       \/ /\ duplicates > 0
          /\ <<"GRANT", a, n>> \in wire
          /\ UNCHANGED wire
          /\ duplicates' = duplicates - 1
    /\ CASE holder[n] = Owner[a] ->
              /\ UNCHANGED node
              /\ ReplyToGrant(a, n, IF a \in Tokenless THEN NoToken ELSE floor[n])
         [] holder[n] # Owner[a] /\ ~IsTooLate(n, a) /\ MayReplace(n, a) ->
              /\ Holder(n, Owner[a])
              /\ IF a \in Tokenless
                 THEN UNCHANGED floor /\ ReplyToGrant(a, n, NoToken)
                 ELSE \E t \in Proposed(a, n) : Floor(n, t) /\ ReplyToGrant(a, n, t)
         [] OTHER -> UNCHANGED <<node, reply>>
    /\ ByNodes

OnConfirm(a, n) ==
    LET isAccepted ==
            \/ ConfirmRule = "none"
            \/ /\ holder[n] = Owner[a]
               /\ ConfirmRule = "owner" \/ floor[n] <= token[a]
    IN  /\ Arrives("CONFIRM", a, n)
        /\ Floor(n, IF ~isAccepted THEN floor[n]
                    ELSE IF ConfirmRule = "none" THEN Later(floor[n], token[a]) ELSE token[a])
        /\ Reply(a, n, "confirming", IF isAccepted THEN token[a] ELSE NoReply)
        /\ UNCHANGED <<holder, duplicates>> /\ ByNodes

OnExtend(a, n) ==
    LET isRaised == floor[n] > token[a]
        votes == holder[n] = Owner[a] /\ (~isRaised \/ ~VoteHeedsFloor)
        heals == holder[n] = None /\ (~isRaised \/ ~HealHeedsFloor)
        isGone == ~votes /\ ~heals /\ (isRaised \/ OthersCountAsLost)
    IN  /\ Arrives("EXTEND", a, n)
        /\ Holder(n, IF heals THEN Owner[a] ELSE holder[n])
        /\ Floor(n, IF votes \/ heals THEN Later(floor[n], token[a]) ELSE floor[n])
        /\ Reply(a, n, "extending",
                 IF votes THEN token[a] ELSE IF isGone THEN Gone ELSE NoReply)
        /\ UNCHANGED duplicates /\ ByNodes

\* The release of a lease raises the floor, and frees what it superseded, too.
OnRelease(a, n) ==
    LET isLeases == phase[a] = "releasing"
        frees == \/ holder[n] = Owner[a]
                 \/ isLeases /\ Supersedes[a] # None /\ holder[n] = Supersedes[a]
    IN  /\ ReleaseFollowsGrant => <<"GRANT", a, n>> \notin wire
        /\ Arrives("RELEASE", a, n)
        /\ Holder(n, IF frees THEN None ELSE holder[n])
        /\ Floor(n, IF ReleaseRaisesFloor /\ isLeases /\ token[a] > 0
                    THEN Later(floor[n], token[a] + 1) ELSE floor[n])
        /\ UNCHANGED <<reply, duplicates>> /\ ByNodes

-----------------------------------------------------------------------------
(* What goes wrong, time, and the operator *)

Expire(n) ==
    /\ holder[n] # None
    /\ expiries # 0
    /\ expiries' = IF expiries = None THEN None ELSE expiries - 1
    /\ Holder(n, None)
    /\ UNCHANGED <<floor, opens, wire, reply, client, now, duplicates, forgetting>>

Forget(n) ==
    /\ forgetting > 0
    /\ forgetting' = forgetting - 1
    /\ Holder(n, None)
    /\ Floor(n, 0)
    /\ opens' = [opens EXCEPT ![n] =
           IF HasClocks THEN now + Guard ELSE IF Admissions THEN now + 1 ELSE 0]
    /\ UNCHANGED <<wire, reply, client, now, expiries, duplicates>>

Pass ==
    /\ \E t \in Instants : t > now /\ now' = t
    /\ UNCHANGED <<node, opens, wire, reply, client, luck>>

\* Looks at all nodes and admits those that wait, at one moment.
Admit ==
    LET waiting == {n \in Nodes : ~Votes(n)}
        showsLock == \/ \E n \in Nodes : holder[n] # None
                     \/ \E n \in waiting : floor[n] > 0
        isCountedOn == \E a \in Attempts, n \in waiting :
                           reply[a][n] # NoReply /\ phase[a] \in {"granting", "confirming"}
    IN  /\ Admissions
        /\ waiting # {}
        /\ AdmitRule # "at any time" => ~showsLock
        /\ AdmitRule = "no locks, no attempts" => ~isCountedOn
        /\ opens' = [n \in Nodes |-> 0]
        /\ UNCHANGED <<node, wire, reply, client, now, luck>>

Next ==
    \/ \E a \in Attempts :
           \/ Start(a) \/ Confirmed(a) \/ Extended(a) \/ Lost(a)
           \/ GiveUp(a) \/ Extend(a) \/ Release(a)
           \/ \E those \in SUBSET Nodes : Decide(a, those)
           \/ \E n \in Nodes :
                  OnGrant(a, n) \/ OnConfirm(a, n) \/ OnExtend(a, n) \/ OnRelease(a, n)
    \/ \E n \in Nodes : Expire(n) \/ Forget(n)
    \/ Pass
    \/ Admit

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* The promises, by the names that the documentation has for them *)

\* A majority has the lock of this attempt, and no floor above its token.
IsBacked(a) ==
    Cardinality({n \in Nodes : holder[n] = a /\ floor[n] <= token[a]}) >= Quorum
HasReleased(a, n) == <<"RELEASE", a, n>> \notin wire
HasToken(a) == IsCompleted(a) /\ token[a] > 0

completed_acquisitions_have_distinct_tokens ==
    \A a, b \in Attempts : a # b /\ HasToken(a) /\ HasToken(b) => token[a] # token[b]

tokens_follow_real_time ==
    \A a \in Attempts : phase[a] = "held" /\ token[a] > 0 => token[a] > bar[a]

no_extension_succeeds_once_overtaken ==
    \A a \in Attempts : phase[a] = "extended" => token[a] > bar[a]

an_overtaken_lease_never_regains_a_majority ==
    \A a, b \in Attempts :
        HasToken(a) /\ IsCompleted(b) /\ token[b] > token[a] => ~IsBacked(a)

only_a_lost_lease_is_told_so == \A a \in Attempts : phase[a] = "lost" => ~IsBacked(a)

a_released_lock_never_regains_a_majority ==
    \A a \in Attempts :
        /\ phase[a] = "releasing"
        /\ Cardinality({n \in Nodes : HasReleased(a, n)}) >= Quorum
        => Cardinality({n \in Nodes : holder[n] = a}) < Quorum

no_grant_outlives_its_release ==
    \A a \in Attempts, n \in Nodes :
        phase[a] \in {"failed", "releasing"} /\ HasReleased(a, n) => holder[n] # a

a_holder_keeps_its_majority == \A a \in Attempts : IsHolding(a) => IsBacked(a)

one_holder_at_a_time == \A a, b \in Attempts : IsHolding(a) /\ IsHolding(b) => a = b

one_holder_besides_the_reservation ==
    \A a, b \in Attempts \ {0} : IsHolding(a) /\ IsHolding(b) => a = b

no_hand_over_outlives_the_run_that_took_it_up ==
    \A n \in Nodes : 2 \in Attempts /\ phase[2] = "releasing" /\ HasReleased(2, n)
        => holder[n] # 1
=============================================================================
