/* Tasks that wait for others, with every interleaving of ends and submits. Assumes READ COMMITTED of PostgreSQL: a
 * statement sees what was committed before it began, and a row it locks as the last transaction left it.
 *
 *   finish  engine/dependents.py: lock the parent; flip its unsatisfied edges; lock the children in order of their ids;
 *           subtract the flipped edges. Parent 0 is run again and ends a second time.
 *   submit  engine/dependencies.py: lock the parents `for share` in order of their ids, read their states, insert edges.
 *
 * Deliberately broken variants, which the checker must reject:
 *   -DNOT_EXISTS     a child is free when the statement sees no open parent (no lock of the child, no counter)
 *   -DCOUNTER_ONLY   each end subtracts one; the edge does not remember that it was satisfied
 *   -DNO_SHARE_LOCK  a submit reads the states of parents that may be ending
 */

#define PARENTS 3
#define CHILDREN 2 /* the first was submitted before anything ends, the second while parents end */

bool done[PARENTS];
bool exists[CHILDREN];
bool satisfied[6]; /* edges: child * PARENTS + parent */
byte waiting[CHILDREN];
bool ready[CHILDREN];

byte parent_lock[PARENTS]; /* 0, or the process that will write it */
byte readers[PARENTS];
byte child_lock[CHILDREN];

#define EDGE(c, p) (c * PARENTS + p)

inline set_ready(c) {
  assert(exists[c]);
  assert(!ready[c]);                        /* made ready once */
  assert(done[0] && done[1] && done[2]); /* and not before the last parent has ended */
  ready[c] = true
}

inline end_parent(p) {
  byte c;
  bool flips[CHILDREN];
  bool free[CHILDREN];
  atomic { parent_lock[p] == 0 && readers[p] == 0 -> parent_lock[p] = _pid };
  /* a new statement with a new snapshot */
  atomic {
    c = 0;
    do
    :: c < CHILDREN ->
#if defined(COUNTER_ONLY)
       flips[c] = exists[c];
#else
       flips[c] = exists[c] && !satisfied[EDGE(c, p)];
#endif
#if defined(NOT_EXISTS)
       free[c] = exists[c] && !ready[c] && (p == 0 || done[0]) && (p == 1 || done[1]) && (p == 2 || done[2]);
#endif
       c++
    :: else -> break
    od
  };
#if !defined(NOT_EXISTS)
  c = 0;
  do
  :: c < CHILDREN && flips[c] -> atomic { child_lock[c] == 0 -> child_lock[c] = _pid }; c++
  :: c < CHILDREN && !flips[c] -> c++
  :: else -> break
  od;
#endif
  atomic { /* commit */
    done[p] = true;
    c = 0;
    do
    :: c < CHILDREN ->
       if
       :: flips[c] ->
          satisfied[EDGE(c, p)] = true;
#if defined(NOT_EXISTS)
          if
          :: free[c] -> set_ready(c)
          :: else -> skip
          fi
#else
          assert(waiting[c] > 0);
          waiting[c]--;
          if
          :: waiting[c] == 0 -> set_ready(c)
          :: else -> skip
          fi;
          child_lock[c] = 0
#endif
       :: else -> skip
       fi;
       c++
    :: else -> break
    od;
    parent_lock[p] = 0
  }
}

proctype finish(byte p) {
  end_parent(p);
  if
  :: p == 0 -> end_parent(p) /* it was run again and ends a second time */
  :: else -> skip
  fi
}

proctype submit(byte child) {
  byte p = 0;
  byte open = 0;
  bool seen[PARENTS];
  do
  :: p < PARENTS ->
#if !defined(NO_SHARE_LOCK)
     atomic { parent_lock[p] == 0 -> readers[p]++ };
#endif
     seen[p] = done[p];
     p++
  :: else -> break
  od;
  atomic { /* commit */
    exists[child] = true;
    p = 0;
    do
    :: p < PARENTS ->
       satisfied[EDGE(child, p)] = seen[p];
       if
       :: !seen[p] -> open++
       :: else -> skip
       fi;
#if !defined(NO_SHARE_LOCK)
       readers[p]--;
#endif
       p++
    :: else -> break
    od;
    waiting[child] = open;
    if
    :: open == 0 -> set_ready(child)
    :: else -> skip
    fi
  }
}

init {
  atomic {
    exists[0] = true;
    waiting[0] = PARENTS;
    run finish(0);
    run finish(1);
    run finish(2);
    run submit(1)
  };
  _nr_pr == 1 -> /* all have ended, and none is blocked forever */
  assert(ready[0]);
  assert(ready[1]);
  assert(child_lock[0] == 0 && child_lock[1] == 0)
}
