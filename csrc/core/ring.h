/*
 * The trainer's side of a ring: append rows, age them out, gather them.
 *
 * A ring is a window over an append-only log of segments. Row `id` of a lane lives in segment
 * id / R; the look-up is one table of image addresses, whether the image is a slot in shared memory
 * or a mapped file. Rows are never overwritten in place.
 *
 * One read-write lock a ring: append, update and the cut exclusive, gathers shared. Draws have a
 * mutex of their own. Nothing here calls Python, waits for a slot, or allocates while appending:
 * where no slot is free a call returns PE_NO_SLOT with the rows it has already added.
 *
 * A ring is closed under the exclusive lock, and whoever takes a lock later gets PE_CLOSED instead
 * of it: no call can be among the tables when they are freed.
 */
#ifndef PE_RING_H
#define PE_RING_H

#include <pthread.h>
#include <stdbool.h>

#include "control.h"
#include "format.h"
#include "pcg64.h"

enum pe_status {
  PE_OK = 0,
  PE_NO_SLOT = 1,     /* every free place is held by a pending snapshot */
  PE_NO_MEMORY = 2,   /* shared memory has no room; fault.got holds errno */
  PE_BUSY = 3,        /* the calling thread already holds the lock */
  PE_UNKNOWN_REF = 4, /* fault.row names it */
  PE_EMPTY = 5,
  PE_DAMAGED = 6,    /* a block's hash differs */
  PE_UNREADABLE = 7, /* a mapped block cannot be read; fault.got holds errno */
  PE_OUT_OF_MEMORY = 8,
  PE_CLOSED = 9,
  PE_DROPPED = 10, /* the row was given up; fault.row names its ref */
  PE_BAD_PRIORITY = 11, /* negative, infinite or NaN; fault.row is its index */
  PE_NO_PRIORITY = 12,  /* there are rows, and none has a priority above 0 */
  PE_BROKEN_STACK = 13, /* fault.row: step x lanes + lane, fault.block: the pair */
  PE_NO_WINDOW = 14,    /* no sequence is as long as was asked for */
};

/* What went wrong where; filled in for the statuses that say so. */
struct pe_fault {
  int64_t row;
  uint64_t lane;
  uint64_t segment;
  uint64_t offset;
  uint64_t block;
  uint64_t expected;
  uint64_t got;
};

/* One field's values in caller memory: value (step, lane) at data + step * step_bytes + lane *
 * lane_bytes; both strides are 0 for a constant. */
struct pe_source {
  const uint8_t *data;
  uint64_t step_bytes;
  uint64_t lane_bytes;
};

struct pe_mutable_field {
  uint64_t row_bytes;
  uint64_t offset; /* in the arena, flat by position */
};

/* A snapshot that still needs rows: active while *word is (sequence, PENDING or COMMITTING). */
struct pe_hold {
  _Atomic uint64_t *word;
  uint64_t sequence;
  uint64_t *tails;
  uint64_t *totals;
};

#define PE_MAX_HOLDS 4

/* Rows [first, end) of a lane that were given up. `before`: rows of runs that precede this one,
 * counted from some earlier time on; only differences mean anything. */
struct pe_dropped_run {
  uint64_t first;
  uint64_t end;
  uint64_t before;
};

/* A lane's runs in the window, runs[begin .. end): in order, apart from each other. */
struct pe_dropped {
  struct pe_dropped_run *runs;
  uint64_t begin;
  uint64_t end;
  uint64_t room;
};

/* Two fields that are stacks of frames of one append field `field`: see spans.h. */
struct pe_stack {
  uint32_t field;
  uint32_t depth;
};

struct pe_ring {
  struct pe_ring_control *control;
  uint8_t *base; /* the arena */
  int arena_fd;
  int seal_event; /* eventfd that wakes the writer, or -1 */

  uint32_t segment_shift;
  uint32_t field_count; /* append fields, the start field last */
  uint32_t mutable_count;
  const uint8_t *header_image; /* template of a segment's header */
  uint64_t header_bytes;
  const struct pe_field_record *fields;
  const struct pe_mutable_field *mutables;
  const uint32_t *end_fields; /* append fields that end an episode */
  uint32_t end_count;

  const uint8_t **images; /* lane * table_length + segment mod table_length -> image, or NULL */
  bool *is_file;
  uint64_t file_count; /* images that are mapped files */
  uint64_t *free_slots;
  uint64_t free_count;
  bool *is_reserved; /* slot ranges that have memory */
  /* Bytes that slots may take before somebody looks at what is left: /dev/shm refuses what it does
   * not have, but a memory cgroup kills. Short of it, a slot without memory is none that is free. */
  _Atomic uint64_t may_take;
  _Atomic uint64_t asks_for_memory; /* 0 or 1 */
  _Atomic uint64_t retired_files; /* mapped images that left the window since last looked at */

  struct pe_dropped *dropped;     /* one a lane; changed under the exclusive lock */
  uint64_t dropped_lanes;
  _Atomic uint64_t dropped_rows; /* over all lanes; 0: nobody looks at `dropped` */

  /* What spans rows (spans.h); changed under the exclusive lock. */
  const struct pe_stack *stacks;
  uint32_t stack_count;
  uint32_t reach;              /* frames that a row needs from before it: the deepest stack */
  uint8_t *marks;              /* by position, or NULL as long as nobody asks */
  _Atomic uint64_t valid_rows; /* over all lanes, as `marks` say */
  uint8_t *newest;             /* by lane, the stacks that the next row may continue */
  uint64_t newest_bytes;       /* of one lane */
  bool *has_newest;
  uint32_t *openings; /* by lane, opening rows of the step that is being added */

  struct pe_hold holds[PE_MAX_HOLDS];
  uint64_t lost_updates; /* updates of refs that left the window */
  struct pe_priorities *priorities; /* see priorities.h; NULL: none are kept */
  struct pe_pcg64 rng;

  pthread_rwlock_t lock;
  pthread_mutex_t draw;
  pthread_mutex_t reserving; /* held while a slot gets its memory without the lock */
  bool is_closed;            /* changed under the exclusive lock */
};

/* Set up the process-private side over a control block whose slots are all FREE or, where an engine
 * hands over a live arena, in use. Allocates; PE_OUT_OF_MEMORY where it cannot. */
enum pe_status pe_ring_open(struct pe_ring *ring);

/* Let nobody in any more and wait until nobody is inside; PE_BUSY where the calling thread is.
 * Arena and descriptors may go then. A second call changes nothing. */
enum pe_status pe_ring_close(struct pe_ring *ring);

/* Free the tables of a ring that is closed, or that no other thread knows. */
void pe_ring_free(struct pe_ring *ring);

/* PE_BUSY where the calling thread has the lock, PE_CLOSED (without the lock) after a close. */
enum pe_status pe_ring_lock(struct pe_ring *ring);
enum pe_status pe_ring_lock_shared(struct pe_ring *ring);
bool pe_ring_try_lock(struct pe_ring *ring);
bool pe_ring_try_lock_shared(struct pe_ring *ring);
void pe_ring_unlock(struct pe_ring *ring);

/* Append `steps` rows to each of `lane_count` lanes from `lane_begin`; `mask` (steps x lane_count
 * bytes, or NULL for all) leaves rows out. Exclusive lock held. `done` counts whole steps.
 * PE_BAD_PRIORITY changes nothing. */
enum pe_status pe_ring_append(struct pe_ring *ring, uint64_t lane_begin, uint64_t lane_count,
                              uint64_t steps, const struct pe_source *sources,
                              const struct pe_source *mutables, const uint8_t *mask,
                              uint64_t *done, struct pe_fault *fault);

/* Give one more free slot memory unless `ahead` have it, off the append path. PE_OK: one was given,
 * PE_NO_SLOT: none is wanted now, or asks_for_memory, PE_EMPTY: every slot has memory, for good, PE_NO_MEMORY: none can
 * be had now; fault.got holds errno. */
enum pe_status pe_ring_reserve_ahead(struct pe_ring *ring, uint64_t ahead,
                                     struct pe_fault *fault);

/* Mark the end of a sequence in `lane_count` lanes from `lane_begin`: the next row of each does not
 * continue its last. Exclusive lock held. */
void pe_ring_break(struct pe_ring *ring, uint64_t lane_begin, uint64_t lane_count);

/* Register a pending snapshot with the lanes' present windows; false where all places are taken.
 * Exclusive lock held. */
bool pe_ring_hold(struct pe_ring *ring, _Atomic uint64_t *word, uint64_t sequence);

/* Forget all pending snapshots: their words are about to go away. Exclusive lock held. */
void pe_ring_drop_holds(struct pe_ring *ring);

/* Overwrite mutable fields at refs[0..count): value i of a field at data + i * step_bytes of its
 * source, whose data is NULL for a field that stays. Refs that left the window are ignored and
 * counted, once each however many fields there are. PE_BAD_PRIORITY changes nothing. Exclusive lock
 * held. */
enum pe_status pe_ring_update(struct pe_ring *ring, const int64_t *refs, uint64_t count,
                              const struct pe_source *values, uint64_t *lost,
                              struct pe_fault *fault);

/* Overwrite items of `item_bytes` in one mutable field, counted flat from its start: item i, for i in
 * [0, count), is places[i], or first + i * step where `places` is NULL, and gets what lies at values +
 * i * value_step. The caller has checked that all of them are in the field. PE_BAD_PRIORITY changes
 * nothing. Exclusive lock held. */
struct pe_items {
  const int64_t *places;
  int64_t first;
  int64_t step;
  uint64_t count;
  uint64_t item_bytes;
};
enum pe_status pe_ring_assign(struct pe_ring *ring, uint32_t field, const struct pe_items *items,
                              const uint8_t *values, uint64_t value_step, struct pe_fault *fault);

/* Draw `count` refs, each valid row alike (dropped ones are none), with replacement. Draw mutex and
 * shared lock held. */
enum pe_status pe_ring_draw(struct pe_ring *ring, uint64_t count, int64_t *refs);

/* Copy rows refs[0..count) of the fields whose `outputs` entry is not NULL. Shared lock held. */
enum pe_status pe_ring_gather(struct pe_ring *ring, const int64_t *refs, uint64_t count,
                              uint8_t *const *outputs, uint8_t *const *mutable_outputs,
                              struct pe_fault *fault);

/* Start reading, from mapped files, the rows that the next `count` draws of a generator in state `rng`
 * give: a restore knows them before anybody asks. It waits for nothing, or with `verifies` for the
 * disk, until their blocks are verified. A hint: it cannot fail. Shared lock held. */
void pe_ring_ask_draws(struct pe_ring *ring, const struct pe_pcg64 *rng, uint64_t count,
                       bool verifies);

/* Verify blocks [first, end) of a segment that lives in a mapped file, those that are verified
 * already left out; PE_OK where it is none. Shared lock held. */
enum pe_status pe_ring_verify(struct pe_ring *ring, uint64_t lane, uint64_t segment, uint64_t first,
                              uint64_t end, struct pe_fault *fault);

/* Have pages of a mapped segment that are in memory found without a fault; others are read. Nothing
 * where it is no such segment any more. `offset` is that of a page. Shared lock held. */
void pe_ring_map_pages(struct pe_ring *ring, uint64_t lane, uint64_t segment, uint64_t offset,
                       uint64_t bytes);

/* Let go of the pages of a mapped segment, so that the page cache may drop them, and of what is known
 * of its blocks: all are verified again. Whole files, because the kernel drops nothing of a large
 * folio that is mapped in part (6.18). Exclusive lock held: nobody is between verifying and copying. */
void pe_ring_forget(struct pe_ring *ring, uint64_t lane, uint64_t segment);

/* Give rows [first, first + count) of a lane up, those of them that are in the window: they are
 * drawn and gathered no more, and age out like any other. `added`: those that were valid until now.
 * Exclusive lock held. */
enum pe_status pe_ring_drop(struct pe_ring *ring, uint64_t lane, uint64_t first, uint64_t count,
                            uint64_t *added);

/* Forget dropped rows that left the window. Exclusive lock held. */
void pe_ring_trim_dropped(struct pe_ring *ring, uint64_t lane, uint64_t tail);

/* How many rows of a lane's window are dropped. Shared lock held, as for the two below. */
uint64_t pe_lane_dropped(const struct pe_ring *ring, uint64_t lane);

/* Whether a row is. */
bool pe_lane_is_dropped(const struct pe_ring *ring, uint64_t lane, uint64_t row);

/* The row id of valid row `index` of a lane, counted from its tail. */
uint64_t pe_lane_row(const struct pe_ring *ring, uint64_t lane, uint64_t tail, uint64_t index);

/* Whether a row of the window is no valid one: it was dropped, opens a sequence, or lacks frames. */
bool pe_row_is_hole(const struct pe_ring *ring, uint64_t lane, uint64_t row);

/* Translate positions to refs; -1 where the position holds no valid row. Shared lock held. */
void pe_ring_refs_at(const struct pe_ring *ring, const int64_t *positions, uint64_t count,
                     int64_t *refs);

/* Restore: set a lane's window, let a segment live in a mapped file, or open a slot whose first rows
 * the caller fills in. Exclusive lock held, before the first append. */
void pe_ring_set_lane(struct pe_ring *ring, uint64_t lane, uint64_t tail, uint64_t total_count,
                      bool break_pending);
void pe_ring_map_segment(struct pe_ring *ring, uint64_t lane, uint64_t segment,
                         const uint8_t *image, const struct pe_file *file);
enum pe_status pe_ring_open_segment(struct pe_ring *ring, uint64_t lane, uint64_t segment,
                                    uint8_t **image, struct pe_fault *fault);

/* Let go of a segment whose last row left the window; false while a pending snapshot needs it in
 * memory. A persisted one that a snapshot needs lives on as its file. Exclusive lock held. */
bool pe_ring_release_segment(struct pe_ring *ring, uint64_t lane, uint64_t segment);

/* Let a persisted segment of the window live in its mapped file `image`, and free its slot. False
 * where it is no such: not persisted yet, in a file already, or aged out. Exclusive lock held. */
bool pe_ring_spill_segment(struct pe_ring *ring, uint64_t lane, uint64_t segment,
                           const uint8_t *image);

/* Count the free slots that have memory, and all slots that have. Shared lock held. */
void pe_ring_count_slots(const struct pe_ring *ring, uint64_t *ready, uint64_t *reserved);

static inline uint64_t pe_ring_index(const struct pe_ring *ring, uint64_t lane, uint64_t segment) {
  return lane * ring->control->table_length + (segment & (ring->control->table_length - 1));
}

static inline bool pe_has_dropped(const struct pe_ring *ring) {
  return atomic_load_explicit(&ring->dropped_rows, memory_order_relaxed) != 0;
}

/* Whether `pe_row_is_hole` may say yes. */
static inline bool pe_has_holes(const struct pe_ring *ring) {
  return ring->stack_count > 0 || pe_has_dropped(ring);
}

static inline uint64_t pe_lane_total(const struct pe_ring *ring, uint64_t lane) {
  return atomic_load_explicit(&pe_control_lane(ring->control, lane)->total_count,
                              memory_order_acquire);
}

static inline uint64_t pe_lane_tail(const struct pe_ring *ring, uint64_t lane) {
  return atomic_load_explicit(&pe_control_lane(ring->control, lane)->tail, memory_order_acquire);
}

#endif
