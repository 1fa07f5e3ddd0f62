/*
 * The shared-memory protocol under threads: what the threads of a round share.
 *
 *     stress.c              a round, and what must hold at its end
 *     stress_learner.c      the trainer: appends, cuts, cancels
 *     stress_readers.c      gathers, updates, reserves slots, spills segments to their files
 *     stress_segments.c     the writer: segments to files of the pool
 *     stress_snapshots.c    the writer: staged snapshots to commits
 *     stress_writer.c       the writer's life: slow, dying, started again
 *     stress_publication.c  readers without a lock, as a drain is
 */
#ifndef PE_TEST_STRESS_H
#define PE_TEST_STRESS_H

#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "world.h"

#define LANES 2u
#define ROWS 32u
#define SLOTS 22u
#define ENTRIES 2u
#define STAGING_BYTES 2048u
#define POOL 4096u
#define MANIFESTS 4096u

enum staging { FREE, STAGING, STAGED, WRITING };

/* One staging slot and its snapshot, as in the engine's control block. */
struct entry {
  _Atomic uint64_t staging;
  _Atomic uint64_t snapshot;
  uint64_t tails[LANES];
  uint64_t totals[LANES];
  uint64_t bytes[STAGING_BYTES / 8];
  uint64_t mutables[LANES * ROWS];
};

/* A file of the pool: the writer's alone, and its successor's. */
struct file {
  uint64_t sequence; /* 0: none */
  uint64_t lane;
  uint64_t segment;
  uint8_t *image;
};

struct stress {
  struct world world;
  struct entry entries[ENTRIES];
  struct file pool[POOL];
  const uint8_t *images[SLOTS]; /* of the file of each PERSISTED slot */
  uint64_t manifests[MANIFESTS]; /* sequences of committed snapshots: what a disk would show */
  atomic_bool stop;
  atomic_bool drain;
  uint64_t seed;
  uint64_t deaths, committed, cancelled, failed, persisted, spilled, lost, gathered, waits;
};

struct writer {
  struct stress *stress;
  uint64_t random;
  uint8_t *scratch;
  bool is_draining;
};

#define DIED false
#define STEP(writer) \
  do {               \
    if (!live_on(writer)) return DIED; \
  } while (0)

static inline struct pe_ring_control *control_of(struct stress *stress) {
  return stress->world.ring.control;
}

static inline uint64_t state_of(_Atomic uint64_t *word) {
  return pe_word_state(atomic_load_explicit(word, memory_order_acquire));
}

static inline void nap(unsigned microseconds) {
  const struct timespec time = {0, (long)microseconds * 1000};
  nanosleep(&time, NULL);
}

/* Between two steps of a writer: it may be slow, frozen for a while, or die (false). */
bool live_on(struct writer *writer);

/* The file of the pool with this sequence (0: a free place), or NULL. */
struct file *find_file(struct stress *stress, uint64_t sequence);

/* Persist the segment `key` of a slot, or all that are SEALED; false: the writer died. */
bool persist(struct writer *writer, uint64_t slot, uint64_t key, bool *is_there);
bool persist_all(struct writer *writer);

/* Files whose rows left the window and that no snapshot under way can need. */
void sweep(struct stress *stress);

/* Take the oldest staged snapshot up, if there is one; false: the writer died. */
bool take_up(struct writer *writer);

/* Threads; each gets the struct stress. */
void *learner_thread(void *context);
void *reader_thread(void *context);
void *updater_thread(void *context);
void *reserver_thread(void *context);
void *supervisor_thread(void *context);

void run_publication(void);

#endif
