/* Mapped segment files: a block verified, and every read of them guarded against SIGBUS. */
#include "mapped.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "guard.h"
#include "hash.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

static const struct pe_segment_header *plan_of(const struct pe_ring *ring) {
  return (const void *)ring->header_image;
}

/* Index of the mapped file that an address lies in, or -1. Async-signal-safe. */
static int64_t find_file(const struct pe_ring *ring, const uint8_t *address) {
  const uint64_t entries = ring->control->lanes * ring->control->table_length;
  for (uint64_t i = 0; i < entries; i++)
    if (ring->images[i] != NULL && ring->is_file[i] && address >= ring->images[i] &&
        address < ring->images[i] + plan_of(ring)->file_bytes)
      return (int64_t)i;
  return -1;
}

static bool owns(const void *owner, const uint8_t *address) {
  return find_file(owner, address) >= 0;
}

/* The block that holds a byte of an image; the first one for bytes before the rows. */
static uint64_t block_at(const struct pe_ring *ring, uint64_t offset) {
  uint64_t found = 0;
  for (uint32_t f = 0; f < ring->field_count; f++) {
    const struct pe_field_record *field = &ring->fields[f];
    if (offset < field->offset) break;
    const uint64_t index = (offset - field->offset) / (field->row_bytes << field->block_shift);
    found = field->first_block + (index < field->block_count ? index : field->block_count - 1);
  }
  return found;
}

static enum pe_status run_guarded(struct pe_ring *ring, void (*body)(void *context), void *context,
                                  const uint8_t **address) {
  const struct pe_guard guard = {body, context, owns, ring};
  return pe_guard_run(&guard, address) ? PE_OK : PE_UNREADABLE;
}

/* Verified rows whose pages the cache has dropped come page by page where a copy meets them: in a ring
 * that is larger than the cache that is every row. So where reads of this thread had to wait for the
 * disk, those that follow ask for all of their pages first; the last of them leaves a few rows out,
 * and looks whether these had to wait. */
#define ASKING_READS 16
#define LOOKING_READ 1
static _Thread_local uint32_t asking_reads;

enum pe_asking pe_mapped_asks(void) {
  if (asking_reads == 0) return PE_ASK_NOTHING;
  return asking_reads == LOOKING_READ ? PE_ASK_MOST : PE_ASK_ALL;
}

static long count_waits(void) {
  struct rusage usage;
  return getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_majflt : 0;
}

enum pe_status pe_mapped_read(struct pe_ring *ring, void (*body)(void *context), void *context,
                              struct pe_fault *fault) {
  const uint8_t *address;
  const bool looks = asking_reads <= LOOKING_READ;
  const long waits = looks ? count_waits() : 0;
  const enum pe_status status = run_guarded(ring, body, context, &address);
  asking_reads = !looks ? asking_reads - 1 : count_waits() != waits ? ASKING_READS : 0;
  if (status == PE_OK) return PE_OK;
  const uint64_t index = (uint64_t)find_file(ring, address);
  const uint64_t lane = index / ring->control->table_length;
  const struct pe_table_entry *entry = pe_control_entry(ring->control, lane, index);
  const uint64_t segment =
      atomic_load_explicit(&entry->segment_plus_one, memory_order_relaxed) - 1;
  const uint64_t offset = (uint64_t)(address - ring->images[index]);
  *fault = (struct pe_fault){-1, lane, segment, offset, block_at(ring, offset), 0, EIO};
  return status;
}

bool pe_block_is_verified(const struct pe_ring *ring, const struct pe_block *block) {
  const _Atomic uint32_t *tags = pe_control_verified(ring->control, block->lane, block->segment);
  return atomic_load_explicit(&tags[block->field->first_block + block->index],
                              memory_order_acquire) == pe_verified_tag(block->segment);
}

struct check {
  const uint8_t *block;
  const uint64_t *recorded;
  uint64_t bytes;
  uint8_t *copy; /* where the hash calls Python, which the guard may not leave */
  uint64_t expected;
  uint64_t got;
};

static void check_block(void *context) {
  struct check *check = context;
  check->expected = *check->recorded;
  if (check->copy != NULL)
    memcpy(check->copy, check->block, check->bytes);
  else
    check->got = pe_hash(check->block, check->bytes);
}

enum pe_status pe_block_verify(struct pe_ring *ring, const struct pe_block *block,
                               struct pe_fault *fault) {
  const uint64_t number = block->field->first_block + block->index;
  uint64_t offset, bytes;
  pe_block_range(block->field, block->index, &offset, &bytes);
  const uint64_t begin = offset & ~(uint64_t)(PE_PAGE_BYTES - 1); /* images are mapped at pages */
  /* madvise takes a plain pointer; this advice does not write. */
  void *pages = (void *)(uintptr_t)(block->image + begin);
  const uint8_t *address;
  const uint64_t *table = (const void *)(block->image + plan_of(ring)->block_table_offset);
  struct check check = {block->image + offset, table + number, bytes, NULL, 0, 0};
  *fault = (struct pe_fault){-1, block->lane, block->segment, offset, number, 0, EIO};
  /* The kernel says which error it is; the guard knows only that there was one. EINVAL: a kernel
   * older than 5.14, which cannot ask. */
  if (madvise(pages, offset + bytes - begin, MADV_POPULATE_READ) != 0 && errno != EINVAL) {
    fault->got = (uint64_t)errno;
    return PE_UNREADABLE;
  }
  if (!pe_hash_is_native() && (check.copy = malloc(bytes)) == NULL) return PE_OUT_OF_MEMORY;
  const enum pe_status status = run_guarded(ring, check_block, &check, &address);
  if (status == PE_OK && check.copy != NULL) check.got = pe_hash(check.copy, bytes);
  free(check.copy);
  if (status != PE_OK) return status;
  if (check.got != check.expected) {
    fault->expected = check.expected;
    fault->got = check.got;
    return PE_DAMAGED;
  }
  _Atomic uint32_t *tags = pe_control_verified(ring->control, block->lane, block->segment);
  atomic_store_explicit(&tags[number], pe_verified_tag(block->segment), memory_order_release);
  return PE_OK;
}

/* The mapped image of a segment, or NULL where it left the window or lives elsewhere. */
static const uint8_t *file_image(const struct pe_ring *ring, uint64_t lane, uint64_t segment) {
  const struct pe_table_entry *entry = pe_control_entry(ring->control, lane, segment);
  const uint64_t index = pe_ring_index(ring, lane, segment);
  if (atomic_load_explicit(&entry->segment_plus_one, memory_order_relaxed) != segment + 1 ||
      !ring->is_file[index])
    return NULL;
  return ring->images[index];
}

enum pe_status pe_ring_verify(struct pe_ring *ring, uint64_t lane, uint64_t segment, uint64_t first,
                              uint64_t end, struct pe_fault *fault) {
  const uint8_t *image = file_image(ring, lane, segment);
  if (image == NULL) return PE_OK;
  for (uint32_t f = 0; f < ring->field_count; f++) {
    const struct pe_field_record *field = &ring->fields[f];
    for (uint64_t index = 0; index < field->block_count; index++) {
      const struct pe_block block = {image, field, lane, segment, index};
      const uint64_t number = field->first_block + index;
      if (number < first || number >= end || pe_block_is_verified(ring, &block)) continue;
      const enum pe_status status = pe_block_verify(ring, &block, fault);
      if (status != PE_OK) return status;
    }
  }
  return PE_OK;
}

void pe_ring_map_pages(struct pe_ring *ring, uint64_t lane, uint64_t segment, uint64_t offset,
                       uint64_t bytes) {
  const uint8_t *image = file_image(ring, lane, segment);
  if (image == NULL || offset >= plan_of(ring)->file_bytes) return;
  const uint64_t rest = plan_of(ring)->file_bytes - offset;
  /* A hint: what cannot be had is met, and told, by whoever needs it. */
  (void)madvise((void *)(uintptr_t)(image + offset), bytes < rest ? bytes : rest,
                MADV_POPULATE_READ);
}

void pe_ring_forget(struct pe_ring *ring, uint64_t lane, uint64_t segment) {
  const uint8_t *image = file_image(ring, lane, segment);
  if (image == NULL) return;
  _Atomic uint32_t *tags = pe_control_verified(ring->control, lane, segment);
  for (uint64_t block = 0; block < ring->control->blocks_per_segment; block++)
    atomic_store_explicit(&tags[block], 0, memory_order_release);
  (void)madvise((void *)(uintptr_t)image, plan_of(ring)->file_bytes, MADV_DONTNEED);
}
