/*
 * The blocks of a batch that nobody has verified yet: listed, asked for, then verified.
 *
 * A disk gives its rate only while it has many reads at once. So the blocks are put in the order in
 * which they lie, near ones become one read, and many reads are under way before the first block is
 * waited for and hashed. What is asked for is bounded: with more rows than memory, pages would
 * leave the cache before their turn.
 */
#include <stdlib.h>

#include "hash.h"
#include "mapped.h"
#include "pages.h"

/* A gap that takes the disk less time than one more read does. */
#define JOINED_GAP_BYTES ((uint64_t)32 * 1024)
#define AHEAD_BYTES ((uint64_t)32 * 1024 * 1024)

struct read {
  struct pe_block block;
  const uint8_t *begin; /* of its pages */
  const uint8_t *end;
};

static struct read read_of(const struct pe_block *block) {
  uint64_t offset, bytes;
  pe_block_range(block->field, block->index, &offset, &bytes);
  const uint64_t first = offset & ~(uint64_t)(PE_PAGE_BYTES - 1);
  return (struct read){*block, block->image + first, block->image + offset + bytes};
}

/* Go through the blocks of rows that are not verified: of fields with an output, or of all. Returns
 * how many there are, the same one again for each of its rows; puts up to `room` into `reads`. */
static uint64_t list_cold(const struct pe_ring *ring, const struct pe_place *places, uint64_t count,
                          uint8_t *const *outputs, struct read *reads, uint64_t room) {
  uint64_t found = 0;
  for (uint32_t f = 0; f < ring->field_count; f++) {
    if (outputs != NULL && outputs[f] == NULL) continue;
    const struct pe_field_record *field = &ring->fields[f];
    for (uint64_t i = 0; i < count; i++) {
      const struct pe_place *place = &places[i];
      if (!ring->is_file[pe_ring_index(ring, place->lane, place->segment)]) continue;
      const struct pe_block block = {place->image, field, place->lane, place->segment,
                                     place->row >> field->block_shift};
      if (pe_block_is_verified(ring, &block)) continue;
      if (found < room) reads[found] = read_of(&block);
      found++;
    }
  }
  return found < room || room == 0 ? found : room;
}

static int by_address(const void *one, const void *other) {
  const uint8_t *left = ((const struct read *)one)->begin;
  const uint8_t *right = ((const struct read *)other)->begin;
  return (left > right) - (left < right);
}

/* Put reads in order, each block once; returns how many are left. */
static uint64_t put_in_order(struct read *reads, uint64_t count) {
  uint64_t kept = 0;
  qsort(reads, count, sizeof *reads, by_address);
  for (uint64_t i = 0; i < count; i++)
    /* Blocks of small rows may share a page, never a beginning and an end. */
    if (i == 0 || reads[i].begin != reads[kept - 1].begin || reads[i].end != reads[kept - 1].end)
      reads[kept++] = reads[i];
  return kept;
}

/* What is asked for while blocks are waited for: reads[0 .. asked) are under way or done. */
struct ahead {
  const struct read *reads;
  uint64_t count;
  uint64_t asked;
  uint64_t asked_bytes;
};

/* Ask for the next reads, near ones of a file together, until `upto` bytes were asked for in all. */
static void ask_upto(struct ahead *ahead, uint64_t upto) {
  while (ahead->asked < ahead->count && ahead->asked_bytes < upto) {
    const struct read *first = &ahead->reads[ahead->asked++];
    const uint8_t *end = first->end;
    while (ahead->asked < ahead->count) {
      const struct read *next = &ahead->reads[ahead->asked];
      if (next->block.image != first->block.image ||
          (next->begin > end && (uint64_t)(next->begin - end) > JOINED_GAP_BYTES) ||
          (uint64_t)(next->end - first->begin) > PE_ASK_BYTES)
        break;
      if (next->end > end) end = next->end;
      ahead->asked++;
    }
    const size_t bytes = (size_t)(end - first->begin);
    /* madvise takes a plain pointer; this advice does not write. */
    pe_pages_ask((void *)(uintptr_t)first->begin, bytes);
    ahead->asked_bytes += bytes;
  }
}

static enum pe_status verify_reads(struct pe_ring *ring, const struct read *reads, uint64_t count,
                                   struct pe_fault *fault) {
  _Atomic uint64_t *waiting = &ring->control->cold_reads;
  struct ahead ahead = {reads, count, 0, 0};
  enum pe_status status = PE_OK;
  uint64_t done_bytes = 0, i = 0;
  atomic_fetch_add_explicit(waiting, count, memory_order_relaxed);
  for (; i < count && status == PE_OK; i++) {
    ask_upto(&ahead, done_bytes + AHEAD_BYTES);
    done_bytes += (uint64_t)(reads[i].end - reads[i].begin);
    if (!pe_block_is_verified(ring, &reads[i].block)) /* else by another thread, or the writer */
      status = pe_block_verify(ring, &reads[i].block, fault);
    atomic_fetch_sub_explicit(waiting, 1, memory_order_relaxed);
  }
  atomic_fetch_sub_explicit(waiting, count - i, memory_order_relaxed);
  return status;
}

/* Ask for the pages of rows whose blocks are verified, as far as they lie in files. */
static void ask_known(const struct pe_ring *ring, const struct pe_place *places, uint64_t count,
                      uint8_t *const *outputs, enum pe_asking asking) {
  for (uint32_t f = 0; f < ring->field_count; f++) {
    const struct pe_field_record *field = &ring->fields[f];
    for (uint64_t i = 0; outputs[f] != NULL && i < count; i++) {
      const struct pe_place *place = &places[i];
      const struct pe_block block = {place->image, field, place->lane, place->segment,
                                     place->row >> field->block_shift};
      if (asking == PE_ASK_MOST && i % PE_ASK_LEFT_OUT == 0) continue;
      if (!ring->is_file[pe_ring_index(ring, place->lane, place->segment)] ||
          !pe_block_is_verified(ring, &block))
        continue;
      const uint64_t offset = field->offset + place->row * field->row_bytes;
      const uint64_t begin = offset & ~(uint64_t)(PE_PAGE_BYTES - 1);
      pe_pages_ask((void *)(uintptr_t)(place->image + begin), offset + field->row_bytes - begin);
    }
  }
}

enum pe_status pe_mapped_verify_rows(struct pe_ring *ring, const struct pe_place *places,
                                     uint64_t count, uint8_t *const *outputs,
                                     struct pe_fault *fault) {
  const enum pe_asking asking = pe_mapped_asks();
  if (outputs != NULL && asking != PE_ASK_NOTHING) ask_known(ring, places, count, outputs, asking);
  const uint64_t room = list_cold(ring, places, count, outputs, NULL, 0);
  if (room == 0) return PE_OK;
  struct read *reads = malloc((size_t)room * sizeof *reads);
  if (reads == NULL) return PE_OUT_OF_MEMORY;
  const uint64_t found = list_cold(ring, places, count, outputs, reads, room);
  const enum pe_status status = verify_reads(ring, reads, put_in_order(reads, found), fault);
  free(reads);
  return status;
}

void pe_mapped_ask_rows(struct pe_ring *ring, const struct pe_place *places, uint64_t count) {
  const uint64_t room = list_cold(ring, places, count, NULL, NULL, 0);
  struct read *reads = room == 0 ? NULL : malloc((size_t)room * sizeof *reads);
  if (reads == NULL) return;
  const uint64_t found = list_cold(ring, places, count, NULL, reads, room);
  struct ahead ahead = {reads, put_in_order(reads, found), 0, 0};
  ask_upto(&ahead, AHEAD_BYTES);
  free(reads);
}
