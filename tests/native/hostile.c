/*
 * Damaged bytes for the native readers: images of segments, a ring's control block, mapped files under
 * a gather. Built with AddressSanitizer and UBSan; every buffer is of its exact size.
 *
 *     hostile ROUNDS SEED
 *
 * A reader refuses, names the damage, or has the right values; it never touches another byte, and it
 * ends (the process has an alarm).
 */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "hash.h"
#include "world.h"

static const uint64_t EXTREMES[] = {0,
                                    1,
                                    7,
                                    63,
                                    64,
                                    4095,
                                    4096,
                                    UINT64_C(1) << 31,
                                    UINT32_MAX,
                                    UINT64_C(1) << 32,
                                    UINT64_C(1) << 50,
                                    (UINT64_C(1) << 50) + 1,
                                    (UINT64_C(1) << 62) + 1,
                                    (UINT64_C(1) << 63) + 1,
                                    UINT64_MAX - 7,
                                    UINT64_MAX - 1,
                                    UINT64_MAX};

/* Change one thing in bytes[0 .. count): a bit, or a length of 8 or 4 bytes to an extreme. */
static void mutate(uint8_t *bytes, uint64_t count, uint64_t *random) {
  const uint64_t extreme =
      EXTREMES[world_below(random, sizeof EXTREMES / sizeof EXTREMES[0])];
  switch (world_below(random, 4)) {
    case 0: bytes[world_below(random, count)] ^= (uint8_t)(1u << world_below(random, 8)); break;
    case 1: memcpy(bytes + world_below(random, count / 4) * 4, &extreme, 4); break;
    case 2: memcpy(bytes + world_below(random, count / 8) * 8, &extreme, 8); break;
    default: {
      uint64_t value;
      uint8_t *at = bytes + world_below(random, count / 8) * 8;
      memcpy(&value, at, 8);
      value += world_below(random, 17) - 8;
      memcpy(at, &value, 8);
    }
  }
}

static const struct pe_segment_header *plan_of(const struct world *world) {
  return (const void *)world->header_image;
}

/* A whole file of a lane's segment, and its checksum. */
static uint64_t make_image(const struct world *world, uint8_t *image, uint64_t lane,
                           uint64_t segment) {
  uint8_t scratch[4 * PE_PAGE_BYTES];
  const struct pe_ring *ring = &world->ring;
  memset(image, 0, plan_of(world)->file_bytes);
  memcpy(image, world->header_image, PE_PAGE_BYTES);
  struct pe_segment_header *header = (void *)image;
  header->row_count = WORLD_SEGMENT_ROWS;
  *pe_segment_runs(header) =
      (struct pe_run_record){(uint32_t)lane, 0, segment * WORLD_SEGMENT_ROWS, WORLD_SEGMENT_ROWS};
  for (uint64_t at = 0; at < WORLD_SEGMENT_ROWS; at++) {
    struct row row;
    world_fill_row(&row, (segment * WORLD_SEGMENT_ROWS + at) * ring->control->lanes + lane);
    memcpy(image + ring->fields[0].offset + at * 8, &row.ref, 8);
    memcpy(image + ring->fields[1].offset + at * WORLD_BODY_BYTES, row.body, WORLD_BODY_BYTES);
  }
  return pe_image_seal(image, scratch);
}

/* What rounds have found, for every run. */
static void refuse_known(const struct world *world) {
  uint8_t *image = malloc(plan_of(world)->file_bytes);
  make_image(world, image, 0, 1);
  struct pe_field_record *field =
      (void *)(image + sizeof(struct pe_segment_header)); /* of one block, whose shift is unused */
  field->block_count = 1;
  CHECK(pe_image_is_sound(image, plan_of(world)->file_bytes), "one block for all rows");
  field->block_shift = 64;
  CHECK(!pe_image_is_sound(image, plan_of(world)->file_bytes), "a shift beyond the word");
  free(image);
}

static void attack_images(const struct world *world, uint64_t rounds, uint64_t *random) {
  const uint64_t bytes = plan_of(world)->file_bytes;
  const uint64_t records = sizeof(struct pe_segment_header) +
                           WORLD_FIELDS * sizeof(struct pe_field_record) +
                           sizeof(struct pe_run_record);
  uint64_t sound = 0, found = 0;
  for (uint64_t round = 0; round < rounds; round++) {
    const uint64_t length =
        world_below(random, 4) == 0 ? PE_PAGE_BYTES + world_below(random, bytes) : bytes;
    uint8_t *whole = malloc(bytes);
    uint8_t *image = calloc(1, length);
    make_image(world, whole, 0, 1);
    memcpy(image, whole, length < bytes ? length : bytes);
    free(whole);
    const bool in_rows = world_below(random, 3) == 0 && length == bytes;
    if (in_rows) {
      const uint64_t at = PE_PAGE_BYTES + world_below(random, plan_of(world)->block_table_offset - PE_PAGE_BYTES);
      image[at] ^= (uint8_t)(1u << world_below(random, 8));
      CHECK(pe_image_is_sound(image, length), "its header is whole");
      CHECK(pe_image_verify(image) >= 0, "byte %lu was changed unseen", (unsigned long)at);
      found++;
    } else {
      for (uint64_t i = world_below(random, 3) + 1; i-- > 0;) mutate(image, records, random);
      if (pe_image_is_sound(image, length)) {
        const struct pe_segment_header *header = (const void *)image;
        uint8_t *scratch =
            malloc(header->header_bytes + (header->file_bytes - header->block_table_offset));
        pe_image_verify(image);
        pe_image_seal(image, scratch);
        free(scratch);
        sound++;
      }
    }
    free(image);
  }
  printf("images: %lu rounds, %lu sound, %lu damaged rows found\n", (unsigned long)rounds,
         (unsigned long)sound, (unsigned long)found);
}

/* What an attached control block is asked for. */
static void look_around(struct pe_ring_control *control, uint64_t *random) {
  struct pe_file file;
  for (int i = 0; i < 16; i++) {
    const uint64_t lane = world_below(random, control->lanes);
    const uint64_t segment = world_below(random, 64);
    const uint64_t place = pe_control_find(control, lane, segment, &file);
    CHECK(place == PE_PLACE_FILE || place <= control->slot_count, "place %lu",
          (unsigned long)place);
    const uint64_t block =
        control->blocks_per_segment == 0 ? 0 : world_below(random, control->blocks_per_segment);
    if (control->blocks_per_segment != 0)
      atomic_store_explicit(&pe_control_verified(control, lane, segment)[block], 1,
                            memory_order_relaxed);
    if (control->slot_count == 0) continue;
    const uint64_t slot = world_below(random, control->slot_count);
    atomic_load_explicit(pe_control_word(control, slot), memory_order_acquire);
    file = *pe_control_slot_file(control, slot);
    CHECK(pe_control_slot_offset(control, slot) + control->slot_bytes <= control->arena_bytes,
          "slot %lu leaves the arena", (unsigned long)slot);
  }
}

static void attack_control(const struct world *world, uint64_t rounds, uint64_t *random) {
  uint64_t sound = 0;
  for (uint64_t round = 0; round < rounds; round++) {
    uint8_t *block = aligned_alloc(64, world->bytes);
    memcpy(block, world->base, world->bytes);
    struct pe_ring_control *control = (void *)block;
    if (world_below(random, 2) == 0) {
      for (uint64_t i = world_below(random, 3) + 1; i-- > 0;)
        mutate(block, sizeof *control, random);
      /* Offsets that follow from damaged counts: only the counts themselves are left to judge. */
      if (world_below(random, 2) == 0) pe_control_plan(control);
    } else {
      for (int i = 0; i < 8; i++)
        mutate(block + control->lanes_offset, control->mutable_offset - control->lanes_offset,
               random);
    }
    if (pe_control_is_sound(control, world->bytes)) {
      sound++;
      look_around(control, random);
    }
    free(block);
  }
  printf("control blocks: %lu rounds, %lu sound\n", (unsigned long)rounds, (unsigned long)sound);
}

static int make_file(const uint8_t *image, uint64_t bytes) {
  const int fd = memfd_create("pe-image", MFD_CLOEXEC);
  CHECK(fd >= 0 && pwrite(fd, image, bytes, 0) == (ssize_t)bytes, "a file");
  return fd;
}

static void attack_gather(uint64_t rounds, uint64_t *random) {
  uint64_t right = 0, damaged = 0, unreadable = 0;
  for (uint64_t round = 0; round < rounds; round++) {
    struct world world;
    world_open(&world, 1, 32, 4);
    struct pe_ring *ring = &world.ring;
    const uint64_t bytes = plan_of(&world)->file_bytes;
    uint8_t *image = malloc(bytes);
    struct pe_file file = {1, 0, 4, 4, 1, 0, bytes};
    file.checksum = make_image(&world, image, 0, 1);
    for (uint64_t i = world_below(random, 3); i-- > 0;) mutate(image, bytes, random);
    const int fd = make_file(image, bytes);
    free(image);
    uint8_t *mapped = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(mapped != MAP_FAILED, "mmap");
    pe_ring_set_lane(ring, 0, 4, 8, false);
    pe_ring_map_segment(ring, 0, 1, mapped, &file);
    if (world_below(random, 4) == 0)
      CHECK(ftruncate(fd, (off_t)world_below(random, bytes)) == 0, "ftruncate");

    const int64_t refs[] = {4, 5, 6, 7};
    uint64_t ids[4], priorities[4];
    uint8_t bodies[4 * WORLD_BODY_BYTES], starts[4];
    uint8_t *outputs[] = {(uint8_t *)ids, bodies, starts};
    uint8_t *mutable_outputs[WORLD_MUTABLES] = {(uint8_t *)priorities, NULL};
    struct pe_fault fault;
    for (int again = 0; again < 2; again++) {
      const enum pe_status status =
          pe_ring_gather(ring, refs, 4, outputs, mutable_outputs, &fault);
      if (status == PE_OK) {
        right++;
        for (uint64_t i = 0; i < 4; i++) {
          CHECK(ids[i] == 4 + i && starts[i] == 0, "row %lu is not what was written",
                (unsigned long)(4 + i));
          world_check_body(bodies + i * WORLD_BODY_BYTES, 4 + i, "mapped file");
        }
      } else {
        CHECK(status == PE_DAMAGED || status == PE_UNREADABLE, "status %d", (int)status);
        CHECK(fault.segment == 1 && fault.lane == 0 && fault.block < plan_of(&world)->block_count,
              "the fault names segment %lu", (unsigned long)fault.segment);
        damaged += status == PE_DAMAGED;
        unreadable += status == PE_UNREADABLE;
      }
    }
    world_close(&world);
    munmap(mapped, bytes);
    close(fd);
  }
  printf("gathers: %lu right, %lu damaged, %lu unreadable\n", (unsigned long)right,
         (unsigned long)damaged, (unsigned long)unreadable);
  CHECK(right != 0 && damaged != 0 && unreadable != 0, "one kind of outcome was never met");
}

int main(int argc, char **argv) {
  const uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 2000;
  uint64_t random = (argc > 2 ? strtoull(argv[2], NULL, 10) : 1) * 2 + 1;
  struct world world;
  alarm(600);
  world_open(&world, 2, 16, 3);
  attack_images(&world, rounds, &random);
  attack_control(&world, rounds, &random);
  refuse_known(&world);
  world_close(&world);
  attack_gather(rounds / 4 + 1, &random);
  printf("ok\n");
  return 0;
}
