/*
 * A ring without Python, for native tests: an arena, a plan of segments, and rows whose every byte
 * follows from their ref, so that whoever holds a row can tell whether it is whole.
 *
 * The arena is mapped twice. `base` is the trainer's mapping, and every access through it is seen by
 * ThreadSanitizer. `spec` is where a writer reads, hashes and stamps a slot that it may lose at any
 * moment: such bytes count only where the swap that follows is won, so a race on them is meant, and
 * each test checks what a won swap promises.
 */
#ifndef PE_TEST_WORLD_H
#define PE_TEST_WORLD_H

#include <stdio.h>
#include <stdlib.h>

#include "priorities.h"

#define WORLD_FIELDS 3u
#define WORLD_BODY_BYTES 40u
#define WORLD_SEGMENT_ROWS 4u
#define WORLD_MUTABLES 2u

struct world {
  int fd;
  uint8_t *base;
  uint8_t *spec;
  uint64_t bytes;
  uint8_t *header_image;
  struct pe_mutable_field mutable_fields[WORLD_MUTABLES]; /* uint64; float32, the priorities */
  struct pe_priorities priorities;
  struct pe_ring ring;
};

struct row {
  uint64_t ref;
  uint8_t body[WORLD_BODY_BYTES];
};

/* Says what is wrong and ends the test. */
#define CHECK(condition, ...)                                                \
  do {                                                                       \
    if (!(condition)) {                                                      \
      fprintf(stderr, "%s:%d: not true: %s: ", __FILE__, __LINE__, #condition); \
      fprintf(stderr, __VA_ARGS__);                                          \
      fprintf(stderr, "\n");                                                 \
      abort();                                                               \
    }                                                                        \
  } while (0)

void world_open(struct world *world, uint32_t lanes, uint64_t rows_per_lane, uint64_t slots);
void world_close(struct world *world);

/* The plan of the segments above, written at `image` (a page and more, zeroed). */
void world_plan_header(uint8_t *image);

static inline const struct pe_segment_header *world_plan(const struct world *world) {
  return (const void *)world->header_image;
}

/* Write the whole file of a lane's segment, of the size that the plan tells; return its checksum. */
uint64_t world_make_image(const struct world *world, uint8_t *image, uint64_t lane,
                          uint64_t segment);

/* Fill in the row of a ref, and compare one with it. */
void world_fill_row(struct row *row, uint64_t ref);
void world_check_body(const uint8_t *body, uint64_t ref, const char *where);

/* Compare rows [first, end) of an image of a lane's segment with what was appended. */
void world_check_image(const struct world *world, const uint8_t *image, uint64_t lane,
                       uint64_t first, uint64_t end, const char *where);

/* xorshift64*: a generator of each thread's own. */
uint64_t world_random(uint64_t *state);
static inline uint64_t world_below(uint64_t *state, uint64_t bound) {
  return world_random(state) % bound;
}

#endif
