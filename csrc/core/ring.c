/* The private side of a ring: its tables, its locks, and what a restore sets. */
#include "priorities.h"
#include "spans.h"

#include <stdlib.h>
#include <string.h>

enum pe_status pe_ring_open(struct pe_ring *ring) {
  const struct pe_ring_control *control = ring->control;
  const size_t entries = (size_t)control->lanes * control->table_length;
  pthread_rwlockattr_t attributes;

  ring->segment_shift = (uint32_t)__builtin_ctzll(control->segment_rows);
  ring->images = calloc(entries, sizeof *ring->images);
  ring->is_file = calloc(entries, sizeof *ring->is_file);
  ring->free_slots = calloc(control->slot_count, sizeof *ring->free_slots);
  ring->is_reserved = calloc(control->slot_count, sizeof *ring->is_reserved);
  ring->dropped = calloc(control->lanes, sizeof *ring->dropped);
  ring->dropped_lanes = control->lanes;
  uint64_t *windows = calloc((size_t)control->lanes * 2 * PE_MAX_HOLDS, sizeof *windows);
  if (ring->images == NULL || ring->is_file == NULL || ring->free_slots == NULL ||
      ring->is_reserved == NULL || ring->dropped == NULL || windows == NULL ||
      !pe_spans_open(ring)) {
    free(windows);
    ring->holds[0].tails = NULL;
    pe_ring_free(ring);
    return PE_OUT_OF_MEMORY;
  }
  for (size_t i = 0; i < PE_MAX_HOLDS; i++) {
    ring->holds[i].tails = windows + 2 * i * control->lanes;
    ring->holds[i].totals = ring->holds[i].tails + control->lanes;
  }
  atomic_store_explicit(&ring->may_take, UINT64_MAX, memory_order_relaxed); /* nobody looks yet */
  /* The stack hands out slot 0 first. */
  for (uint64_t slot = control->slot_count; slot-- > 0;)
    ring->free_slots[ring->free_count++] = slot;

  pthread_rwlockattr_init(&attributes);
  /* Else a stream of gathers starves the append. */
  pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
  pthread_rwlock_init(&ring->lock, &attributes);
  pthread_rwlockattr_destroy(&attributes);
  pthread_mutex_init(&ring->draw, NULL);
  pthread_mutex_init(&ring->reserving, NULL);
  return PE_OK;
}

enum pe_status pe_ring_close(struct pe_ring *ring) {
  if (pthread_rwlock_wrlock(&ring->lock) != 0) return PE_BUSY;
  ring->is_closed = true;
  pthread_rwlock_unlock(&ring->lock);
  /* A slot that is just being given memory; the next one finds the ring closed. */
  pthread_mutex_lock(&ring->reserving);
  pthread_mutex_unlock(&ring->reserving);
  return PE_OK;
}

void pe_ring_free(struct pe_ring *ring) {
  /* Not by the control block: in a forked child that is not mapped. */
  for (uint64_t lane = 0; ring->dropped != NULL && lane < ring->dropped_lanes; lane++)
    free(ring->dropped[lane].runs);
  free(ring->dropped);
  ring->dropped = NULL;
  if (ring->priorities != NULL) pe_priorities_free(ring->priorities);
  pe_spans_free(ring);
  free(ring->images);
  free(ring->is_file);
  free(ring->free_slots);
  free(ring->is_reserved);
  free(ring->holds[0].tails);
  ring->images = NULL;
  ring->is_file = NULL;
  ring->free_slots = NULL;
  ring->is_reserved = NULL;
  memset(ring->holds, 0, sizeof ring->holds);
}

/* What a lock call comes to: a closed ring lets nobody keep its lock. */
static enum pe_status admit(struct pe_ring *ring, int error) {
  if (error != 0) return PE_BUSY;
  if (!ring->is_closed) return PE_OK;
  pthread_rwlock_unlock(&ring->lock);
  return PE_CLOSED;
}

enum pe_status pe_ring_lock(struct pe_ring *ring) {
  return admit(ring, pthread_rwlock_wrlock(&ring->lock));
}

enum pe_status pe_ring_lock_shared(struct pe_ring *ring) {
  return admit(ring, pthread_rwlock_rdlock(&ring->lock));
}

bool pe_ring_try_lock(struct pe_ring *ring) {
  return admit(ring, pthread_rwlock_trywrlock(&ring->lock)) == PE_OK;
}

bool pe_ring_try_lock_shared(struct pe_ring *ring) {
  return admit(ring, pthread_rwlock_tryrdlock(&ring->lock)) == PE_OK;
}

void pe_ring_unlock(struct pe_ring *ring) { pthread_rwlock_unlock(&ring->lock); }

void pe_ring_break(struct pe_ring *ring, uint64_t lane_begin, uint64_t lane_count) {
  for (uint64_t lane = lane_begin; lane < lane_begin + lane_count; lane++)
    atomic_store_explicit(&pe_control_lane(ring->control, lane)->break_pending, 1,
                          memory_order_relaxed);
}

void pe_ring_set_lane(struct pe_ring *ring, uint64_t lane, uint64_t tail, uint64_t total_count,
                      bool break_pending) {
  struct pe_lane *shared = pe_control_lane(ring->control, lane);
  atomic_store_explicit(&shared->break_pending, break_pending, memory_order_relaxed);
  atomic_store_explicit(&shared->tail, tail, memory_order_release);
  atomic_store_explicit(&shared->total_count, total_count, memory_order_release);
}

void pe_ring_map_segment(struct pe_ring *ring, uint64_t lane, uint64_t segment,
                         const uint8_t *image, const struct pe_file *file) {
  struct pe_table_entry *entry = pe_control_entry(ring->control, lane, segment);
  const uint64_t index = pe_ring_index(ring, lane, segment);
  atomic_store_explicit(&entry->place, PE_PLACE_NONE, memory_order_release);
  atomic_store_explicit(&entry->segment_plus_one, segment + 1, memory_order_release);
  pe_control_set_file(entry, file);
  ring->images[index] = image;
  ring->is_file[index] = true;
  ring->file_count++;
}
