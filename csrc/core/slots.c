/* Where segments live: slots given memory, opened, spilled, released; holds of pending snapshots. */
#include <string.h>
#include <sys/mman.h>

#include "pages.h"
#include "ring.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static bool hold_is_active(const struct pe_hold *hold) {
  _Atomic uint64_t *const at = hold->word;
  if (at == NULL) return false;
  const uint64_t word = atomic_load_explicit(at, memory_order_acquire);
  const uint64_t state = pe_word_state(word);
  return pe_word_tag(word) == hold->sequence &&
         (state == PE_SNAPSHOT_PENDING || state == PE_SNAPSHOT_COMMITTING);
}

static bool segment_is_held(const struct pe_ring *ring, uint64_t lane, uint64_t segment) {
  const uint64_t first = segment << ring->segment_shift;
  const uint64_t end = first + ring->control->segment_rows;
  for (size_t i = 0; i < PE_MAX_HOLDS; i++) {
    const struct pe_hold *hold = &ring->holds[i];
    if (hold->tails[lane] < end && hold->totals[lane] > first && hold_is_active(hold)) return true;
  }
  return false;
}

bool pe_ring_hold(struct pe_ring *ring, _Atomic uint64_t *word, uint64_t sequence) {
  for (size_t i = 0; i < PE_MAX_HOLDS; i++) {
    struct pe_hold *hold = &ring->holds[i];
    if (hold_is_active(hold)) continue;
    hold->word = word;
    hold->sequence = sequence;
    for (uint64_t lane = 0; lane < ring->control->lanes; lane++) {
      hold->tails[lane] = pe_lane_tail(ring, lane);
      hold->totals[lane] = pe_lane_total(ring, lane);
    }
    return true;
  }
  return false;
}

void pe_ring_drop_holds(struct pe_ring *ring) {
  for (size_t i = 0; i < PE_MAX_HOLDS; i++) ring->holds[i].word = NULL;
}

/* Free a slot, not an open one, whatever the writer is doing with it: its own swaps then fail. */
static void free_slot(struct pe_ring *ring, uint64_t slot) {
  _Atomic uint64_t *word = pe_control_word(ring->control, slot);
  uint64_t seen = atomic_load_explicit(word, memory_order_acquire);
  while (!pe_word_move(word, seen, pe_word(0, PE_SLOT_FREE)))
    seen = atomic_load_explicit(word, memory_order_acquire);
  ring->free_slots[ring->free_count++] = slot;
}

bool pe_ring_release_segment(struct pe_ring *ring, uint64_t lane, uint64_t segment) {
  struct pe_table_entry *entry = pe_control_entry(ring->control, lane, segment);
  const uint64_t index = pe_ring_index(ring, lane, segment);
  const uint64_t place = atomic_load_explicit(&entry->place, memory_order_relaxed);
  if (atomic_load_explicit(&entry->segment_plus_one, memory_order_relaxed) != segment + 1 ||
      place == PE_PLACE_NONE)
    return true;
  const bool held = segment_is_held(ring, lane, segment);
  if (place == PE_PLACE_FILE) {
    if (ring->images[index] != NULL) {
      ring->images[index] = NULL;
      ring->file_count--;
      atomic_fetch_add_explicit(&ring->retired_files, 1, memory_order_relaxed);
    }
    if (held) return true;
  } else {
    const uint64_t slot = place - 1;
    const uint64_t word =
        atomic_load_explicit(pe_control_word(ring->control, slot), memory_order_acquire);
    if (held && pe_word_state(word) != PE_SLOT_PERSISTED) return false;
    ring->images[index] = NULL;
    if (held)
      pe_control_set_file(entry, pe_control_slot_file(ring->control, slot));
    else
      atomic_store_explicit(&entry->place, PE_PLACE_NONE, memory_order_release);
    free_slot(ring, slot);
    return true;
  }
  atomic_store_explicit(&entry->place, PE_PLACE_NONE, memory_order_release);
  return true;
}

bool pe_ring_spill_segment(struct pe_ring *ring, uint64_t lane, uint64_t segment,
                           const uint8_t *image) {
  struct pe_ring_control *control = ring->control;
  struct pe_table_entry *entry = pe_control_entry(control, lane, segment);
  const uint64_t index = pe_ring_index(ring, lane, segment);
  const uint64_t place = atomic_load_explicit(&entry->place, memory_order_relaxed);
  if (atomic_load_explicit(&entry->segment_plus_one, memory_order_relaxed) != segment + 1 ||
      place == PE_PLACE_NONE || place == PE_PLACE_FILE ||
      (segment + 1) << ring->segment_shift <= pe_lane_tail(ring, lane))
    return false;
  const uint64_t slot = place - 1;
  const uint64_t word =
      atomic_load_explicit(pe_control_word(control, slot), memory_order_acquire);
  if (word != pe_word(segment * control->lanes + lane, PE_SLOT_PERSISTED)) return false;
  pe_control_set_file(entry, pe_control_slot_file(control, slot));
  ring->images[index] = image;
  ring->is_file[index] = true;
  ring->file_count++;
  free_slot(ring, slot);
  return true;
}

void pe_ring_count_slots(const struct pe_ring *ring, uint64_t *ready, uint64_t *reserved) {
  *ready = *reserved = 0;
  for (uint64_t i = 0; i < ring->free_count; i++) *ready += ring->is_reserved[ring->free_slots[i]];
  for (uint64_t slot = 0; slot < ring->control->slot_count; slot++)
    *reserved += ring->is_reserved[slot];
}

/* Free aged-out slots that no pending snapshot holds any more. */
static void collect_slots(struct pe_ring *ring) {
  struct pe_ring_control *control = ring->control;
  for (uint64_t slot = 0; slot < control->slot_count; slot++) {
    const uint64_t word = atomic_load_explicit(pe_control_word(control, slot), memory_order_acquire);
    if (pe_word_state(word) == PE_SLOT_FREE || pe_word_state(word) == PE_SLOT_OPEN) continue;
    const uint64_t lane = pe_word_tag(word) % control->lanes;
    const uint64_t segment = pe_word_tag(word) / control->lanes;
    if ((segment + 1) << ring->segment_shift <= pe_lane_tail(ring, lane))
      pe_ring_release_segment(ring, lane, segment);
  }
}

/* Whether the table entry of a new segment is no longer needed by the one it stood for. */
static bool entry_is_reusable(struct pe_ring *ring, uint64_t lane, uint64_t segment) {
  struct pe_table_entry *entry = pe_control_entry(ring->control, lane, segment);
  const uint64_t former = atomic_load_explicit(&entry->segment_plus_one, memory_order_relaxed);
  if (former == 0 || atomic_load_explicit(&entry->place, memory_order_relaxed) == PE_PLACE_NONE)
    return true;
  if (!pe_ring_release_segment(ring, lane, former - 1)) return false;
  return !segment_is_held(ring, lane, former - 1);
}

/* 0, an errno, or EAGAIN where somebody has to look at what is left of memory first. */
static int reserve_slot(struct pe_ring *ring, uint64_t slot) {
  const uint64_t offset = pe_control_slot_offset(ring->control, slot);
  const uint64_t bytes = ring->control->slot_bytes;
  uint64_t left = atomic_load_explicit(&ring->may_take, memory_order_relaxed);
  do {
    if (left < bytes) {
      atomic_store_explicit(&ring->asks_for_memory, 1, memory_order_release);
      return EAGAIN;
    }
  } while (!atomic_compare_exchange_weak_explicit(&ring->may_take, &left, left - bytes,
                                                  memory_order_relaxed, memory_order_relaxed));
  const int error = pe_pages_reserve(ring->arena_fd, (off_t)offset, (off_t)bytes);
  /* Mapped in one go too: an append that outruns the reserving thread would fault page by page. */
  if (error == 0) (void)madvise(ring->base + offset, bytes, MADV_POPULATE_WRITE);
  return error;
}

/* Index in the free stack of the slot to use next, or -1: reserved ones first, newest first. */
static int64_t choose_free(const struct pe_ring *ring, bool reserved) {
  for (uint64_t i = ring->free_count; i-- > 0;)
    if (ring->is_reserved[ring->free_slots[i]] == reserved) return (int64_t)i;
  return -1;
}

static uint64_t take_free(struct pe_ring *ring, int64_t at) {
  const uint64_t slot = ring->free_slots[at];
  memmove(&ring->free_slots[at], &ring->free_slots[at + 1],
          (size_t)(ring->free_count - (uint64_t)at - 1) * sizeof *ring->free_slots);
  ring->free_count--;
  return slot;
}

static enum pe_status reserve_one(struct pe_ring *ring, uint64_t ahead, struct pe_fault *fault) {
  uint64_t ready, reserved;
  enum pe_status status = pe_ring_lock(ring);
  if (status != PE_OK) return status;
  pe_ring_count_slots(ring, &ready, &reserved);
  const int64_t at = ready < ahead ? choose_free(ring, false) : -1;
  const uint64_t slot = at < 0 ? 0 : take_free(ring, at);
  pe_ring_unlock(ring);
  if (at < 0) return reserved == ring->control->slot_count ? PE_EMPTY : PE_NO_SLOT;

  const int error = reserve_slot(ring, slot);
  status = pe_ring_lock(ring);
  if (status != PE_OK) return status; /* closed meanwhile: nobody wants the slot any more */
  ring->is_reserved[slot] = error == 0;
  ring->free_slots[ring->free_count++] = slot;
  pe_ring_unlock(ring);
  fault->got = (uint64_t)error;
  if (error == EAGAIN) return PE_NO_SLOT;
  return error == 0 ? PE_OK : PE_NO_MEMORY;
}

enum pe_status pe_ring_reserve_ahead(struct pe_ring *ring, uint64_t ahead,
                                     struct pe_fault *fault) {
  /* Arena and descriptor stay until this is let go: see pe_ring_close. */
  pthread_mutex_lock(&ring->reserving);
  const enum pe_status status = reserve_one(ring, ahead, fault);
  pthread_mutex_unlock(&ring->reserving);
  return status;
}

enum pe_status pe_ring_open_segment(struct pe_ring *ring, uint64_t lane, uint64_t segment,
                                    uint8_t **image, struct pe_fault *fault) {
  struct pe_ring_control *control = ring->control;
  if (!entry_is_reusable(ring, lane, segment)) return PE_NO_SLOT;
  int64_t at = choose_free(ring, true);
  if (at < 0) { /* before more memory is asked for, which may have ended */
    collect_slots(ring);
    at = choose_free(ring, true);
  }
  if (at < 0) at = choose_free(ring, false);
  if (at < 0) return PE_NO_SLOT;
  const uint64_t slot = ring->free_slots[at];
  if (!ring->is_reserved[slot]) {
    const int error = reserve_slot(ring, slot);
    if (error == EAGAIN) return PE_NO_SLOT;
    if (error != 0) {
      fault->got = (uint64_t)error;
      return PE_NO_MEMORY;
    }
    ring->is_reserved[slot] = true;
  }
  take_free(ring, at);

  uint8_t *start = ring->base + pe_control_slot_offset(control, slot);
  memcpy(start, ring->header_image, ring->header_bytes);
  struct pe_segment_header *header = (void *)start;
  header->line = atomic_load_explicit(&control->line, memory_order_relaxed);
  pe_segment_runs(header)->lane = (uint32_t)lane;
  pe_segment_runs(header)->first_row = segment << ring->segment_shift;

  struct pe_table_entry *entry = pe_control_entry(control, lane, segment);
  const uint64_t index = pe_ring_index(ring, lane, segment);
  atomic_store_explicit(&entry->place, PE_PLACE_NONE, memory_order_release);
  atomic_store_explicit(&entry->segment_plus_one, segment + 1, memory_order_release);
  const uint64_t key = segment * control->lanes + lane;
  const bool moved = pe_word_move(pe_control_word(control, slot), pe_word(0, PE_SLOT_FREE),
                                  pe_word(key, PE_SLOT_OPEN));
  assert(moved);
  (void)moved;
  atomic_store_explicit(&entry->place, slot + 1, memory_order_release);
  ring->images[index] = start;
  ring->is_file[index] = false;
  *image = start;
  return PE_OK;
}
