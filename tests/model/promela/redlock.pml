/* The lock protocol once more, from its description and not from the model in Python beside it.

   Each attempt to acquire is a process that runs ACQUIRE, EXTEND and RELEASE from top to bottom;
   each node is a process that takes any message that is on its way to it. Messages overtake each
   other freely and need never arrive. A lock may expire at any instant. What is tried (which rules,
   how many attempts, what may go wrong) comes as macros: see variants.py. */

#define QUORUM (NODES / 2 + 1)

/* ---- rules; the defaults are the protocol */

#define NEVER 0
#define ALWAYS 1
#define IF_OWNER 2
#define IF_OWNER_AND_FLOOR 3
#ifndef CONFIRM_RULE
#define CONFIRM_RULE IF_OWNER_AND_FLOOR
#endif
#ifndef CONFIRMATIONS
#define CONFIRMATIONS QUORUM
#endif
#ifndef HEAL_HEEDS_FLOOR
#define HEAL_HEEDS_FLOOR 1
#endif
#ifndef VOTE_HEEDS_FLOOR
#define VOTE_HEEDS_FLOOR 1
#endif
#ifndef OTHERS_COUNT_AS_LOST
#define OTHERS_COUNT_AS_LOST 0
#endif
#ifndef LOST_AFTER
#define LOST_AFTER QUORUM
#endif
#ifndef RELEASE_RAISES_FLOOR
#define RELEASE_RAISES_FLOOR 1
#endif
#ifndef RELEASE_FOLLOWS_GRANT
#define RELEASE_FOLLOWS_GRANT 1
#endif
#ifndef SUPERSEDES_ANYONE
#define SUPERSEDES_ANYONE 0
#endif
#ifndef HAND_OVER_HEEDS_FLOOR
#define HAND_OVER_HEEDS_FLOOR 1
#endif
#define AT_ANY_TIME 0
#define WITHOUT_LOCKS 1
#define WITHOUT_LOCKS_AND_ATTEMPTS 2
#ifndef ADMIT_RULE
#define ADMIT_RULE WITHOUT_LOCKS_AND_ATTEMPTS
#endif

/* ---- the world: who the attempts are, each a number from 0 */

#define NONE 255
#ifndef NODES
#define NODES 3
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 2
#endif
#ifndef EXTENDING      /* bits: which attempts extend */
#define EXTENDING 0
#endif
#ifndef TOKENLESS      /* bits: which are reservations without a token */
#define TOKENLESS 0
#endif
#ifndef HANDED_OVER    /* bits: which are sent by the holder whom they supersede */
#define HANDED_OVER 0
#endif
#ifndef RETRY_OF_2     /* attempt 2 begins after this one has failed */
#define RETRY_OF_2 NONE
#endif
#ifndef RETRY_OF_3
#define RETRY_OF_3 NONE
#endif
#ifndef OWNER_OF_2     /* whose owner it uses again */
#define OWNER_OF_2 2
#endif
#ifndef SUPERSEDED_BY_1
#define SUPERSEDED_BY_1 NONE
#endif
#ifndef SUPERSEDED_BY_2
#define SUPERSEDED_BY_2 NONE
#endif
#ifndef RELEASES
#define RELEASES 0
#endif
#ifndef EXPIRIES
#define EXPIRIES 255   /* any number */
#endif
#ifndef DUPLICATES
#define DUPLICATES 0
#endif
#ifndef LEAP           /* a token may be so much more than the floor */
#define LEAP 1
#endif
#ifndef FORGETTING
#define FORGETTING 0
#endif
#ifndef ADMISSIONS     /* a node that forgot waits for the operator's word */
#define ADMISSIONS 0
#endif

#define IS(set, i) ((set >> (i)) & 1)
#define RETRIED(i) ((i) == 2 -> RETRY_OF_2 : ((i) == 3 -> RETRY_OF_3 : NONE))
#define OWNER(i) (((i) == 2 -> OWNER_OF_2 : (i)) + 1)
#define SUPERSEDED(i) ((i) == 1 -> SUPERSEDED_BY_1 : ((i) == 2 -> SUPERSEDED_BY_2 : NONE))

/* ---- what there is */

#define NOBODY 0
byte holder[NODES];                  /* OWNER of the lock key */
byte top[NODES];                     /* the floor */

#define GRANT 1
#define CONFIRM 2
#define EXTEND 4
#define RELEASE 8
byte wire[ATTEMPTS * NODES];         /* bits: messages on their way */

#define SET_BUT_NO_TOKEN 255
#define OVERTAKEN 254
byte reply[ATTEMPTS * NODES];        /* of the present round: a token, one of these, or 0 */

#define IDLE 0
#define GRANTING 1
#define CONFIRMING 2
#define FAILED 3
#define HELD 4
#define EXTENDING_NOW 5
#define EXTENDED 6
#define LOST 7
#define RELEASING 8
byte phase[ATTEMPTS];
byte token[ATTEMPTS];
byte bar[ATTEMPTS];                  /* the highest token completed before the round began */

byte expiries = EXPIRIES;
byte duplicates = DUPLICATES;
byte forgetting = FORGETTING;

#define AT(i, n) ((i) * NODES + (n))
#define IS_COMPLETED(i) (phase[i] >= HELD)
#define IS_HOLDING(i) (phase[i] >= HELD && phase[i] <= EXTENDED)

#ifdef CLOCKS
#define TICK 8                       /* more than there are grants */
#ifndef SKEW
#define SKEW 2
#endif
#define START 5
byte now = START;
byte opens[NODES];
bool is_ahead[ATTEMPTS];             /* P is beyond all clamps, else below them */
#define OFFSET(n) ((n) == 0 -> OFFSET_0 : ((n) == 1 -> OFFSET_1 : OFFSET_2))
#define VOTES(n) (now >= opens[n])
#elif ADMISSIONS
bool is_waiting[NODES];              /* it forgot, and has not been admitted */
#define VOTES(n) (!is_waiting[n])
#define WAITS(i, n) (is_waiting[n])
#define SHOWS_NO_LOCK(i, n) (holder[n] == NOBODY && !(is_waiting[n] && top[n] > 0))
#else
#define VOTES(n) true
#endif

hidden byte k, count, others, answer;

/* ---- promises: what is asserted of every state; the names are those of promises.py */

#if ATTEMPTS > 1
#define AND_1(P) && P(1)
#define MOST_1(P) + P(1)
#else
#define AND_1(P)
#define MOST_1(P)
#endif
#if ATTEMPTS > 2
#define AND_2(P) && P(2)
#define MOST_2(P) + P(2)
#else
#define AND_2(P)
#define MOST_2(P)
#endif
#if ATTEMPTS > 3
#define AND_3(P) && P(3)
#define MOST_3(P) + P(3)
#else
#define AND_3(P)
#define MOST_3(P)
#endif
#define EACH(P) (P(0) AND_1(P) AND_2(P) AND_3(P))
#if NODES == 1
#define SUM(P, i) (P(i, 0))
#elif NODES == 3
#define SUM(P, i) (P(i, 0) + P(i, 1) + P(i, 2))
#elif NODES == 5
#define SUM(P, i) (P(i, 0) + P(i, 1) + P(i, 2) + P(i, 3) + P(i, 4))
#endif

#define HAS_TOKEN(i) (IS_COMPLETED(i) && token[i])
#define IS_SHARED(i, j) (HAS_TOKEN(i) && HAS_TOKEN(j) && token[i] == token[j])
#define IS_BELOW(i, j) (IS_COMPLETED(j) && token[j] > token[i])
#if ATTEMPTS == 1
#define ALL_DIFFER true
#define IS_OVERTAKEN(i) false
#elif ATTEMPTS == 2
#define ALL_DIFFER (!IS_SHARED(0, 1))
#define IS_OVERTAKEN(i) (IS_BELOW(i, 0) || IS_BELOW(i, 1))
#elif ATTEMPTS == 3
#define ALL_DIFFER (!IS_SHARED(0, 1) && !IS_SHARED(0, 2) && !IS_SHARED(1, 2))
#define IS_OVERTAKEN(i) (IS_BELOW(i, 0) || IS_BELOW(i, 1) || IS_BELOW(i, 2))
#elif ATTEMPTS == 4
#define ALL_DIFFER (!IS_SHARED(0, 1) && !IS_SHARED(0, 2) && !IS_SHARED(1, 2) && \
    !IS_SHARED(0, 3) && !IS_SHARED(1, 3) && !IS_SHARED(2, 3))
#define IS_OVERTAKEN(i) (IS_BELOW(i, 0) || IS_BELOW(i, 1) || IS_BELOW(i, 2) || IS_BELOW(i, 3))
#endif

#define HAS_KEY(i, n) (holder[n] == OWNER(i))
#define BACKS(i, n) (HAS_KEY(i, n) && top[n] <= token[i])
#define HAS_RELEASED(i, n) ((wire[AT(i, n)] & RELEASE) == 0)
#define OUTLIVES(i, n) (HAS_KEY(i, n) && HAS_RELEASED(i, n))
#define IS_BACKED(i) (SUM(BACKS, i) >= QUORUM)
#define IN_ORDER(i) !(phase[i] == HELD && token[i] && token[i] <= bar[i])
#define EXTENDS_IN_TIME(i) !(phase[i] == EXTENDED && token[i] <= bar[i])
#define STAYS_OVERTAKEN(i) !(HAS_TOKEN(i) && IS_OVERTAKEN(i) && IS_BACKED(i))
#define IS_LOST_IF_TOLD(i) !(phase[i] == LOST && IS_BACKED(i))
#define STAYS_RELEASED(i) \
    !(phase[i] == RELEASING && SUM(HAS_RELEASED, i) >= QUORUM && SUM(HAS_KEY, i) >= QUORUM)
#define ENDS_RELEASED(i) \
    !((phase[i] == FAILED || phase[i] == RELEASING) && SUM(OUTLIVES, i) > 0)
#define KEEPS_MAJORITY(i) (!IS_HOLDING(i) || IS_BACKED(i))
#define HAND_OVER_OUTLIVES(i, n) (HAS_KEY(i, n) && HAS_RELEASED(2, n))

/* Always false: an assertion of one shows its name. */
hidden byte completed_acquisitions_have_distinct_tokens, tokens_follow_real_time;
hidden byte no_extension_succeeds_once_overtaken, an_overtaken_lease_never_regains_a_majority;
hidden byte only_a_lost_lease_is_told_so, a_released_lock_never_regains_a_majority;
hidden byte no_grant_outlives_its_release, a_holder_keeps_its_majority;
hidden byte one_holder_at_a_time, one_holder_besides_the_reservation;
hidden byte no_hand_over_outlives_the_run_that_took_it_up, this_state_is_reached;

never {
    do
#ifdef KEEP_completed_acquisitions_have_distinct_tokens
    :: !ALL_DIFFER -> assert(completed_acquisitions_have_distinct_tokens)
#endif
#ifdef KEEP_tokens_follow_real_time
    :: !EACH(IN_ORDER) -> assert(tokens_follow_real_time)
#endif
#ifdef KEEP_no_extension_succeeds_once_overtaken
    :: !EACH(EXTENDS_IN_TIME) -> assert(no_extension_succeeds_once_overtaken)
#endif
#ifdef KEEP_an_overtaken_lease_never_regains_a_majority
    :: !EACH(STAYS_OVERTAKEN) -> assert(an_overtaken_lease_never_regains_a_majority)
#endif
#ifdef KEEP_only_a_lost_lease_is_told_so
    :: !EACH(IS_LOST_IF_TOLD) -> assert(only_a_lost_lease_is_told_so)
#endif
#ifdef KEEP_a_released_lock_never_regains_a_majority
    :: !EACH(STAYS_RELEASED) -> assert(a_released_lock_never_regains_a_majority)
#endif
#ifdef KEEP_no_grant_outlives_its_release
    :: !EACH(ENDS_RELEASED) -> assert(no_grant_outlives_its_release)
#endif
#ifdef KEEP_a_holder_keeps_its_majority
    :: !EACH(KEEPS_MAJORITY) -> assert(a_holder_keeps_its_majority)
#endif
#ifdef KEEP_one_holder_at_a_time
    :: (IS_HOLDING(0) MOST_1(IS_HOLDING) MOST_2(IS_HOLDING) MOST_3(IS_HOLDING)) > 1 ->
        assert(one_holder_at_a_time)
#endif
#ifdef KEEP_one_holder_besides_the_reservation
    :: (0 MOST_1(IS_HOLDING) MOST_2(IS_HOLDING) MOST_3(IS_HOLDING)) > 1 ->
        assert(one_holder_besides_the_reservation)
#endif
#ifdef KEEP_no_hand_over_outlives_the_run_that_took_it_up
    :: phase[2] == RELEASING && SUM(HAND_OVER_OUTLIVES, 1) > 0 ->
        assert(no_hand_over_outlives_the_run_that_took_it_up)
#endif
#ifdef REACHES       /* a state that must exist, so that the search is not about nothing */
    :: REACHES -> assert(this_state_is_reached)
#endif
    :: true
    od
}

/* ---- attempts */

inline new_round(i, message) {       /* forget the replies, write to every node */
    k = 0;
    do
    :: k < NODES ->
        reply[AT(i, k)] = 0; wire[AT(i, k)] = wire[AT(i, k)] | message; k++
    :: else -> break
    od;
    skip
}

inline note_bar(i, above) {          /* the highest token completed by now, if above */
    bar[i] = 0; k = 0;
    do
    :: k < ATTEMPTS ->
        if
        :: IS_COMPLETED(k) && token[k] > above && token[k] > bar[i] -> bar[i] = token[k]
        :: else
        fi;
        k++
    :: else -> break
    od;
    skip
}

#define ANSWERED(i, n) (reply[AT(i, n)] != 0)
#define IS_CONFIRMED_BY(i, n) (reply[AT(i, n)] == token[i])
#define IS_REFUSED_BY(i, n) (reply[AT(i, n)] == OVERTAKEN)
#define MAY_START(i) \
    ((RETRIED(i) == NONE || phase[RETRIED(i)] == FAILED) && \
     (SUPERSEDED(i) == NONE || phase[SUPERSEDED(i)] >= HELD))
#define MAY_GIVE_UP(i) (RELEASES || (i) == RETRY_OF_2 || (i) == RETRY_OF_3)

/* T is the highest of the grants that were read; where it was granted, it is confirmed already. */
inline decide(i, those) {
    answer = 0; count = 0; others = 0; k = 0;
    do
    :: k < NODES ->
        if
        :: IS(those, k) && reply[AT(i, k)] > answer -> answer = reply[AT(i, k)]
        :: else
        fi;
        k++
    :: else -> break
    od;
    k = 0;
    do
    :: k < NODES ->
        if
        :: IS(those, k) && reply[AT(i, k)] == answer -> count++
        :: IS(those, k) && reply[AT(i, k)] != answer ->
            reply[AT(i, k)] = 0; others = others | (1 << k)
        :: else -> reply[AT(i, k)] = 0
        fi;
        k++
    :: else -> break
    od;
    if
    :: answer == SET_BUT_NO_TOKEN -> phase[i] = HELD; new_round(i, 0)
    :: else ->
        token[i] = answer;
        if
        :: CONFIRM_RULE == NEVER || count >= CONFIRMATIONS -> phase[i] = HELD; new_round(i, 0)
        :: else ->
            phase[i] = CONFIRMING; k = 0;
            do
            :: k < NODES ->
                if
                :: IS(others, k) -> wire[AT(i, k)] = wire[AT(i, k)] | CONFIRM
                :: else
                fi;
                k++
            :: else -> break
            od
        fi
    fi;
    skip
}

/* Any majority of the replies there are may be the one that was read. */
#define MAY_READ(i, those, n) (!IS(those, n) || ANSWERED(i, n))
#define MAY_READ_3(i, those) \
    (MAY_READ(i, those, 0) && MAY_READ(i, those, 1) && MAY_READ(i, those, 2))
#define MAY_READ_5(i, those) \
    (MAY_READ_3(i, those) && MAY_READ(i, those, 3) && MAY_READ(i, those, 4))
#define READING(i, those, MAY) \
    :: d_step { phase[i] == GRANTING && MAY(i, those) -> decide(i, those) }

#if RELEASES
#define SENT_AT_THE_END RELEASE
#else
#define SENT_AT_THE_END 0
#endif

#ifdef CLOCKS
#define BEGINS(i, ahead) \
    :: d_step { MAY_START(i) -> is_ahead[i] = ahead; note_bar(i, 0); phase[i] = GRANTING; \
            new_round(i, GRANT) }
#endif

proctype Attempt(byte i) {
#ifdef CLOCKS
    if
    BEGINS(i, false)
    BEGINS(i, true)
    fi;
#else
    d_step { MAY_START(i) -> note_bar(i, 0); phase[i] = GRANTING; new_round(i, GRANT) };
#endif
    do
#if NODES == 1
    :: d_step { phase[i] == GRANTING && ANSWERED(i, 0) -> decide(i, 1) }
#elif NODES == 3
    READING(i, 3, MAY_READ_3) READING(i, 5, MAY_READ_3) READING(i, 6, MAY_READ_3)
    READING(i, 7, MAY_READ_3)
#elif NODES == 5
    READING(i, 7, MAY_READ_5) READING(i, 11, MAY_READ_5) READING(i, 13, MAY_READ_5)
    READING(i, 14, MAY_READ_5) READING(i, 19, MAY_READ_5) READING(i, 21, MAY_READ_5)
    READING(i, 22, MAY_READ_5) READING(i, 25, MAY_READ_5) READING(i, 26, MAY_READ_5)
    READING(i, 28, MAY_READ_5) READING(i, 15, MAY_READ_5) READING(i, 23, MAY_READ_5)
    READING(i, 27, MAY_READ_5) READING(i, 29, MAY_READ_5) READING(i, 30, MAY_READ_5)
    READING(i, 31, MAY_READ_5)
#endif
    :: d_step { phase[i] == CONFIRMING && SUM(IS_CONFIRMED_BY, i) >= CONFIRMATIONS ->
            phase[i] = HELD; new_round(i, 0) }
    :: d_step { MAY_GIVE_UP(i) && (phase[i] == GRANTING || phase[i] == CONFIRMING) ->
            phase[i] = FAILED; bar[i] = 0; new_round(i, SENT_AT_THE_END) }
    :: d_step { IS(EXTENDING, i) && phase[i] == HELD ->
            note_bar(i, token[i]); phase[i] = EXTENDING_NOW; new_round(i, EXTEND) }
    :: d_step { phase[i] == EXTENDING_NOW && SUM(IS_CONFIRMED_BY, i) >= QUORUM ->
            phase[i] = EXTENDED; new_round(i, 0) }
    :: d_step { phase[i] == EXTENDING_NOW && SUM(IS_REFUSED_BY, i) >= LOST_AFTER ->
            phase[i] = LOST; new_round(i, 0) }
    :: d_step { RELEASES && IS_HOLDING(i) ->
            phase[i] = RELEASING; bar[i] = 0; new_round(i, RELEASE) }
    od
}

/* ---- nodes */

inline answered(n, i, round) {       /* a reply counts while its round goes on */
    if
    :: answer && phase[i] == round -> reply[AT(i, n)] = answer
    :: else
    fi;
    skip
}

#define IS_TOO_LATE(n, i) \
    (IS(HANDED_OVER, i) && HAND_OVER_HEEDS_FLOOR && top[n] > token[SUPERSEDED(i)])
#define MAY_REPLACE(n, i) \
    (holder[n] == NOBODY || (SUPERSEDED(i) != NONE && \
        (SUPERSEDES_ANYONE || holder[n] == SUPERSEDED(i) + 1)))

inline grant(n, i, leap, is_read) {
    answer = 0;
    if
    :: holder[n] == OWNER(i) -> answer = (IS(TOKENLESS, i) -> SET_BUT_NO_TOKEN : top[n])
    :: holder[n] != OWNER(i) && IS_TOO_LATE(n, i)
    :: holder[n] != OWNER(i) && !IS_TOO_LATE(n, i) && MAY_REPLACE(n, i) ->
        holder[n] = OWNER(i);
        if
        :: IS(TOKENLESS, i) -> answer = SET_BUT_NO_TOKEN
        :: else ->
#ifdef CLOCKS
            answer = (now + OFFSET(n) + (is_ahead[i] -> SKEW : -SKEW)) * TICK;
            answer = (answer > top[n] -> answer : top[n] + 1);
#else
            answer = top[n] + leap;
#endif
            top[n] = answer
        fi
    :: else
    fi;
    if
    :: is_read || !ANSWERED(i, n) -> answered(n, i, GRANTING)
    :: else
    fi;
    skip
}

inline confirm(n, i) {
    answer = 0;
    if
    :: CONFIRM_RULE == ALWAYS -> answer = token[i]; top[n] = (top[n] > answer -> top[n] : answer)
    :: CONFIRM_RULE != ALWAYS && holder[n] == OWNER(i) &&
       (CONFIRM_RULE == IF_OWNER || top[n] <= token[i]) -> answer = token[i]; top[n] = answer
    :: else
    fi;
    answered(n, i, CONFIRMING)
}

inline extend(n, i) {
    answer = 0;
    if
    :: holder[n] == OWNER(i) && (top[n] <= token[i] || !VOTE_HEEDS_FLOOR) ->
        answer = token[i]; top[n] = (top[n] > answer -> top[n] : answer)
    :: holder[n] == NOBODY && (top[n] <= token[i] || !HEAL_HEEDS_FLOOR) ->
        holder[n] = OWNER(i); top[n] = (top[n] > token[i] -> top[n] : token[i])
    :: else ->
        if
        :: top[n] > token[i] || OTHERS_COUNT_AS_LOST -> answer = OVERTAKEN
        :: else
        fi
    fi;
    answered(n, i, EXTENDING_NOW)
}

inline release(n, i) {
    if
    :: holder[n] == OWNER(i) -> holder[n] = NOBODY
    :: holder[n] != OWNER(i) && phase[i] == RELEASING && SUPERSEDED(i) != NONE &&
       holder[n] == SUPERSEDED(i) + 1 -> holder[n] = NOBODY
    :: else
    fi;
    if
    :: RELEASE_RAISES_FLOOR && phase[i] == RELEASING && token[i] && top[n] <= token[i] ->
        top[n] = token[i] + 1
    :: else
    fi;
    skip
}

#define ON_ITS_WAY(n, i, message) (wire[AT(i, n)] & message)
#define TAKE(n, i, message) wire[AT(i, n)] = wire[AT(i, n)] - message

/* Of the replies to two copies of a grant, either may be the one that is read. */
#define GRANTS(n, i, leap, is_read) \
    :: d_step { ON_ITS_WAY(n, i, GRANT) && VOTES(n) -> \
            TAKE(n, i, GRANT); grant(n, i, leap, is_read) }
#define GRANTS_AND_STAYS(n, i, leap, is_read) \
    :: d_step { duplicates > 0 && ON_ITS_WAY(n, i, GRANT) && VOTES(n) -> \
            duplicates--; grant(n, i, leap, is_read) }
#if LEAP > 1
#define ALL_GRANTS(GIVES, n, i, is_read) GIVES(n, i, 1, is_read) GIVES(n, i, 2, is_read)
#else
#define ALL_GRANTS(GIVES, n, i, is_read) GIVES(n, i, 1, is_read)
#endif
#if DUPLICATES
#define MESSAGES_WITH_GRANT(n, i) \
    ALL_GRANTS(GRANTS, n, i, true) ALL_GRANTS(GRANTS, n, i, false) \
    ALL_GRANTS(GRANTS_AND_STAYS, n, i, true) ALL_GRANTS(GRANTS_AND_STAYS, n, i, false)
#else
#define MESSAGES_WITH_GRANT(n, i) ALL_GRANTS(GRANTS, n, i, true)
#endif

#define MESSAGES_OF(n, i) \
    MESSAGES_WITH_GRANT(n, i) \
    :: d_step { ON_ITS_WAY(n, i, CONFIRM) -> TAKE(n, i, CONFIRM); confirm(n, i) } \
    :: d_step { ON_ITS_WAY(n, i, EXTEND) -> TAKE(n, i, EXTEND); extend(n, i) } \
    :: d_step { ON_ITS_WAY(n, i, RELEASE) && \
                !(RELEASE_FOLLOWS_GRANT && ON_ITS_WAY(n, i, GRANT)) -> \
            TAKE(n, i, RELEASE); release(n, i) }

proctype Node(byte n) {
    do
    MESSAGES_OF(n, 0)
#if ATTEMPTS > 1
    MESSAGES_OF(n, 1)
#endif
#if ATTEMPTS > 2
    MESSAGES_OF(n, 2)
#endif
#if ATTEMPTS > 3
    MESSAGES_OF(n, 3)
#endif
    :: d_step { holder[n] != NOBODY && expiries > 0 ->
            expiries = (EXPIRIES == 255 -> 255 : expiries - 1); holder[n] = NOBODY }
    :: d_step { forgetting > 0 ->
            forgetting--;
#ifdef CLOCKS
            opens[n] = now + GUARD;
#elif ADMISSIONS
            is_waiting[n] = true;
#endif
            holder[n] = NOBODY; top[n] = 0 }
    od
}

#ifdef CLOCKS
#if PASSES
proctype Time() {
    now = now + GUARD
}
#endif
#endif

#if ADMISSIONS
/* Looks at all nodes and admits those that wait, at one moment. */
#define IS_COUNTED_ON_BY(i, n) \
    (is_waiting[n] && reply[AT(i, n)] && (phase[i] == GRANTING || phase[i] == CONFIRMING))
#define COUNTS_ON_NONE(i) (SUM(IS_COUNTED_ON_BY, i) == 0)
proctype Operator() {
    do
    :: d_step { SUM(WAITS, 0) > 0 && \
                (ADMIT_RULE == AT_ANY_TIME || SUM(SHOWS_NO_LOCK, 0) == NODES) && \
                (ADMIT_RULE != WITHOUT_LOCKS_AND_ATTEMPTS || EACH(COUNTS_ON_NONE)) ->
            k = 0;
            do
            :: k < NODES -> is_waiting[k] = false; k++
            :: else -> break
            od }
    od
}
#endif

init {
    atomic {
        run Node(0);
#if NODES > 1
        run Node(1); run Node(2);
#endif
#if NODES > 3
        run Node(3); run Node(4);
#endif
#if ADMISSIONS
        run Operator();
#endif
        run Attempt(0);
#if ATTEMPTS > 1
        run Attempt(1);
#endif
#if ATTEMPTS > 2
        run Attempt(2);
#endif
#if ATTEMPTS > 3
        run Attempt(3);
#endif
#ifdef CLOCKS
#if PASSES
        run Time();
#endif
#endif
    }
}
