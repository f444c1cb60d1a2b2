/* One task from claim to end, with every interleaving of two workers, the maintenance jobs that reclaim leases and
 * promote retries, and a person who cancels. Between two statements, any other process may take a step.
 *
 * Each `atomic` block is one statement or one transaction of the product:
 *   claim      engine/claim.py            select ... for update skip locked, then the fence grows
 *   heartbeat  engine/leases.py           under the fence
 *   complete   engine/sql/finish.sql      `complete_tasks`: where id, fence and status fit
 *   reclaim    maintenance/reclaim.py     finds expired leases, then locks the row and checks again
 *   promote    maintenance/jobs.py        `promote`: the next attempt of a retry is due
 *   cancel     engine/change.py           under the lock of the row
 *
 * Deliberately broken variants, which the checker must reject:
 *   -DNO_FENCE      a completion checks the state of the task, not the fence
 *   -DBY_ID         a completion checks nothing but the id
 *   -DNO_RECHECK    reclaim trusts what it read before it had the lock
 *   -DNO_COUNT      reclaim counts no attempt
 */

#define MAX_ATTEMPTS 2

mtype = { READY, RUNNING, RETRYING, COMPLETED, DEAD_LETTERED, CANCELLED };

mtype status = READY;
byte fence = 0;
byte attempts = 0;
bool expired = false; /* the live claim's lease has run out */

byte accepted = 0;     /* results that were acknowledged */
byte live_holder = 0;  /* ghost: the worker under the live fence, 0 for none */
byte executions = 0;   /* ghost: claims that were handed out */

#define ENDED (status == COMPLETED || status == DEAD_LETTERED || status == CANCELLED)

inline finish(me, token) {
  atomic {
    if
#if defined(BY_ID)
    :: true ->
#elif defined(NO_FENCE)
    :: status == RUNNING ->
#else
    :: status == RUNNING && fence == token ->
#endif
      assert(live_holder == me); /* the result is that of the live claim */
      status = COMPLETED;
      accepted++;
      live_holder = 0;
      assert(accepted <= 1)
    :: else -> skip /* lease_lost: nothing changes */
    fi
  }
}

proctype worker(byte me) {
  byte token;
  do
  :: atomic {
       status == READY ->
         status = RUNNING;
         fence++;
         executions++;
         assert(executions <= MAX_ATTEMPTS); /* a task that kills its workers runs at most MAX_ATTEMPTS times */
         assert(live_holder == 0); /* at most one live claim */
         live_holder = me;
         token = fence;
         expired = false
     };
     do
     :: true -> atomic { /* a heartbeat in time, or too late */
          if
          :: status == RUNNING && fence == token -> expired = false
          :: else -> skip
          fi
        }
     :: true ->
        finish(me, token);
        if
        :: true -> finish(me, token) /* the answer was lost: send it again */
        :: true -> skip
        fi;
        break
     :: true -> break /* killed: it never reports again under this token */
     od
  :: ENDED -> break
  od
}

active proctype time() {
  do
  :: atomic {
       status == RUNNING && !expired -> expired = true
     }
  :: ENDED -> break
  od
}

active proctype reclaim() {
  byte seen;
  do
  :: atomic { status == RUNNING && expired -> seen = fence };
     /* the row is not locked yet: here its worker may send a heartbeat, complete or be replaced */
     atomic {
       if
#if defined(NO_RECHECK)
       :: status == RUNNING ->
#else
       :: status == RUNNING && fence == seen && expired ->
#endif
         assert(expired); /* a living worker keeps its task */
         live_holder = 0;
         expired = false;
#if !defined(NO_COUNT)
         attempts++;
#endif
         if
         :: attempts < MAX_ATTEMPTS -> status = RETRYING
         :: else -> status = DEAD_LETTERED
         fi
       :: else -> skip
       fi
     }
  :: ENDED -> break
  od
}

active proctype promote() {
  do
  :: atomic { status == RETRYING -> status = READY }
  :: ENDED -> break
  od
}

active proctype person() {
  if
  :: atomic {
       !ENDED ->
         status = CANCELLED;
         live_holder = 0
     }
  :: skip
  fi
}

init {
  atomic {
    run worker(1);
    run worker(2)
  }
}

/* No state follows an accepted result. */
active proctype observer() {
end:
  atomic { accepted == 1 && status != COMPLETED -> assert(false) }
}
