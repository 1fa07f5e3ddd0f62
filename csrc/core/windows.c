/* Draws around rows that are not valid, and of windows of sequences. */
#include <stdlib.h>

#include "spans.h"

/* So many misses in a row, and the candidates are counted instead: no draw takes without a bound. */
#define MISSES_MAX 64

/* What a draw looks for: a valid row, or the first row of a window of `length` rows. */
struct search {
  struct pe_ring *ring;
  uint64_t length; /* 1: any valid row */
  bool pad;
};

static bool is_found(const struct search *search, uint64_t lane, uint64_t row) {
  const struct pe_ring *ring = search->ring;
  if ((pe_mark_of(ring, lane, row) & PE_MARK_VALID) == 0) return false;
  const uint64_t total = pe_lane_total(ring, lane);
  uint64_t end = row + 1;
  while (end < row + search->length && end < total && pe_row_continues(ring, lane, end)) end++;
  if (end == row + search->length) return true;
  /* Too short from here on; a window of its own where the whole sequence is. */
  return search->pad && (row == pe_lane_tail(ring, lane) || !pe_row_continues(ring, lane, row) ||
                         (pe_mark_of(ring, lane, row - 1) & PE_MARK_VALID) == 0);
}

/* Call `take` with each row that a search finds, in order. */
static void scan(const struct search *search,
                 void (*take)(void *context, uint64_t number, int64_t ref), void *context,
                 uint64_t *found) {
  const uint64_t lanes = search->ring->control->lanes;
  *found = 0;
  for (uint64_t lane = 0; lane < lanes; lane++) {
    const uint64_t total = pe_lane_total(search->ring, lane);
    for (uint64_t row = pe_lane_tail(search->ring, lane); row < total; row++)
      if (is_found(search, lane, row)) {
        if (take != NULL) take(context, *found, (int64_t)(row * lanes + lane));
        ++*found;
      }
  }
}

struct pick {
  uint64_t number;
  uint64_t place;
};

struct picks {
  struct pick *sorted;
  uint64_t count;
  uint64_t at;
  int64_t *refs;
};

static int by_number(const void *left, const void *right) {
  const struct pick *a = left, *b = right;
  return (a->number > b->number) - (a->number < b->number);
}

static void take_picks(void *context, uint64_t number, int64_t ref) {
  struct picks *picks = context;
  while (picks->at < picks->count && picks->sorted[picks->at].number == number)
    picks->refs[picks->sorted[picks->at++].place] = ref;
}

/* Draw the refs that are -1 by counting all candidates. */
static enum pe_status draw_counted(const struct search *search, uint64_t count, int64_t *refs) {
  struct picks picks = {NULL, 0, 0, refs};
  uint64_t found;
  scan(search, NULL, NULL, &found);
  if (found == 0) return PE_NO_WINDOW;
  picks.sorted = malloc((size_t)count * sizeof *picks.sorted);
  if (picks.sorted == NULL) return PE_OUT_OF_MEMORY;
  for (uint64_t i = 0; i < count; i++)
    if (refs[i] < 0)
      picks.sorted[picks.count++] = (struct pick){pe_pcg64_below(&search->ring->rng, found), i};
  qsort(picks.sorted, (size_t)picks.count, sizeof *picks.sorted, by_number);
  scan(search, take_picks, &picks, &found);
  free(picks.sorted);
  return PE_OK;
}

/* Draw rows that the search finds: rows of the window that miss are drawn again. */
static enum pe_status draw_found(const struct search *search, uint64_t count, int64_t *refs) {
  const uint64_t lanes = search->ring->control->lanes;
  enum pe_status status = pe_ring_draw(search->ring, count, refs);
  bool is_counting = false;
  for (uint64_t i = 0; status == PE_OK && i < count; i++) {
    for (uint32_t misses = 0;;) {
      if (is_found(search, (uint64_t)refs[i] % lanes, (uint64_t)refs[i] / lanes)) break;
      if (is_counting || ++misses == MISSES_MAX) {
        is_counting = true;
        refs[i] = -1;
        break;
      }
      status = pe_ring_draw(search->ring, 1, &refs[i]);
      if (status != PE_OK) break;
    }
  }
  return status == PE_OK && is_counting ? draw_counted(search, count, refs) : status;
}

enum pe_status pe_ring_draw_valid(struct pe_ring *ring, uint64_t count, int64_t *refs) {
  if (ring->stack_count == 0) return pe_ring_draw(ring, count, refs);
  if (atomic_load_explicit(&ring->valid_rows, memory_order_relaxed) == 0) return PE_EMPTY;
  const struct search search = {ring, 1, false};
  return draw_found(&search, count, refs);
}

enum pe_status pe_ring_draw_windows(struct pe_ring *ring, uint64_t count, uint64_t length, bool pad,
                                    int64_t *refs, int64_t *lengths) {
  const int64_t lanes = (int64_t)ring->control->lanes;
  const struct search search = {ring, length, pad};
  if (atomic_load_explicit(&ring->valid_rows, memory_order_relaxed) == 0) return PE_EMPTY;
  int64_t *firsts = malloc((size_t)count * sizeof *firsts);
  int64_t *lasts = malloc((size_t)count * sizeof *lasts);
  enum pe_status status = PE_OUT_OF_MEMORY;
  if (firsts == NULL || lasts == NULL) goto done;
  status = draw_found(&search, count, firsts);
  if (status != PE_OK) goto done;
  pe_steps_find(ring, firsts, count, length, lasts, lengths);
  for (uint64_t i = 0; i < count; i++)
    for (uint64_t t = 0; t < length; t++)
      refs[i * length + t] =
          t < (uint64_t)lengths[i] ? firsts[i] + (int64_t)t * lanes : lasts[i];
done:
  free(firsts);
  free(lasts);
  return status;
}
