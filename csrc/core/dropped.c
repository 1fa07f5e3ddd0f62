/* Rows that were given up: holes in a lane's window, few and seldom added to. */
#include <stdlib.h>
#include <string.h>

#include "priorities.h"
#include "spans.h"

static uint64_t rows_of(const struct pe_dropped *dropped) {
  if (dropped->begin == dropped->end) return 0;
  const struct pe_dropped_run *last = &dropped->runs[dropped->end - 1];
  return last->before + (last->end - last->first) - dropped->runs[dropped->begin].before;
}

uint64_t pe_lane_dropped(const struct pe_ring *ring, uint64_t lane) {
  return rows_of(&ring->dropped[lane]);
}

/* The first run that ends behind `row`. */
static uint64_t find_run(const struct pe_dropped *dropped, uint64_t row) {
  uint64_t low = dropped->begin, high = dropped->end;
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (dropped->runs[middle].end <= row)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

bool pe_lane_is_dropped(const struct pe_ring *ring, uint64_t lane, uint64_t row) {
  const struct pe_dropped *dropped = &ring->dropped[lane];
  const uint64_t at = find_run(dropped, row);
  return at < dropped->end && dropped->runs[at].first <= row;
}

bool pe_row_is_hole(const struct pe_ring *ring, uint64_t lane, uint64_t row) {
  if (ring->stack_count == 0) return pe_lane_is_dropped(ring, lane, row);
  return (pe_mark_of(ring, lane, row) & PE_MARK_VALID) == 0;
}

uint64_t pe_lane_row(const struct pe_ring *ring, uint64_t lane, uint64_t tail, uint64_t index) {
  const struct pe_dropped *dropped = &ring->dropped[lane];
  const struct pe_dropped_run *runs = dropped->runs;
  uint64_t low = dropped->begin, high = dropped->end;
  if (low == high) return tail + index;
  const uint64_t base = runs[low].before;
  /* How many runs begin at or before the row: each has first - tail - (rows dropped before it)
   * valid rows in front of it. */
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (runs[middle].first - tail - (runs[middle].before - base) <= index)
      low = middle + 1;
    else
      high = middle;
  }
  if (low == dropped->begin) return tail + index;
  const struct pe_dropped_run *run = &runs[low - 1];
  return tail + index + (run->before - base) + (run->end - run->first);
}

void pe_ring_trim_dropped(struct pe_ring *ring, uint64_t lane, uint64_t tail) {
  struct pe_dropped *dropped = &ring->dropped[lane];
  const uint64_t before = rows_of(dropped);
  while (dropped->begin < dropped->end && dropped->runs[dropped->begin].end <= tail)
    dropped->begin++;
  if (dropped->begin < dropped->end) {
    struct pe_dropped_run *run = &dropped->runs[dropped->begin];
    if (run->first < tail) {
      run->before += tail - run->first;
      run->first = tail;
    }
  }
  atomic_fetch_sub_explicit(&ring->dropped_rows, before - rows_of(dropped), memory_order_relaxed);
}

/* Make room for one run more, those in use moved to the front. */
static bool grow(struct pe_dropped *dropped) {
  const uint64_t count = dropped->end - dropped->begin;
  if (count + 1 > dropped->room) {
    const uint64_t room = dropped->room < 8 ? 8 : 2 * dropped->room;
    struct pe_dropped_run *runs = malloc((size_t)room * sizeof *runs);
    if (runs == NULL) return false;
    if (count > 0) memcpy(runs, dropped->runs + dropped->begin, (size_t)count * sizeof *runs);
    free(dropped->runs);
    dropped->runs = runs;
    dropped->room = room;
  } else if (dropped->begin > 0) {
    memmove(dropped->runs, dropped->runs + dropped->begin, (size_t)count * sizeof *dropped->runs);
  }
  dropped->begin = 0;
  dropped->end = count;
  return true;
}

/* Put rows [first, end) among the runs; those that it touches become one with it. */
static void insert(struct pe_dropped *dropped, uint64_t first, uint64_t end) {
  struct pe_dropped_run *runs = dropped->runs;
  uint64_t at = 0;
  while (at < dropped->end && runs[at].end < first) at++;
  uint64_t behind = at;
  for (; behind < dropped->end && runs[behind].first <= end; behind++) {
    if (runs[behind].first < first) first = runs[behind].first;
    if (runs[behind].end > end) end = runs[behind].end;
  }
  memmove(&runs[at + 1], &runs[behind], (size_t)(dropped->end - behind) * sizeof *runs);
  dropped->end = dropped->end - (behind - at) + 1;
  runs[at] = (struct pe_dropped_run){first, end, 0};
  uint64_t before = 0;
  for (uint64_t i = 0; i < dropped->end; i++) {
    runs[i].before = before;
    before += runs[i].end - runs[i].first;
  }
}

enum pe_status pe_ring_drop(struct pe_ring *ring, uint64_t lane, uint64_t first, uint64_t count,
                            uint64_t *added) {
  struct pe_dropped *dropped = &ring->dropped[lane];
  const uint64_t tail = pe_lane_tail(ring, lane);
  const uint64_t total = pe_lane_total(ring, lane);
  uint64_t end = count > UINT64_MAX - first ? UINT64_MAX : first + count;
  *added = 0;
  if (first < tail) first = tail;
  if (end > total) end = total;
  if (first >= end) return PE_OK;
  if (!grow(dropped)) return PE_OUT_OF_MEMORY;
  const uint64_t before = rows_of(dropped);
  insert(dropped, first, end);
  *added = rows_of(dropped) - before;
  if (ring->marks != NULL) pe_marks_drop(ring, lane, first, end);
  atomic_fetch_add_explicit(&ring->dropped_rows, *added, memory_order_relaxed);
  if (ring->priorities != NULL) pe_priorities_dropped(ring, lane);
  return PE_OK;
}
