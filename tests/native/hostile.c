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
#include <unistd.h>

#include "hash.h"
#include "readers.h"

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

/* What rounds have found, for every run. */
static void refuse_known(const struct world *world) {
  uint8_t *image = malloc(world_plan(world)->file_bytes);
  world_make_image(world, image, 0, 1);
  struct pe_field_record *field =
      (void *)(image + sizeof(struct pe_segment_header)); /* of one block, whose shift is unused */
  field->block_count = 1;
  CHECK(pe_image_is_sound(image, world_plan(world)->file_bytes), "one block for all rows");
  field->block_shift = 64;
  CHECK(!pe_image_is_sound(image, world_plan(world)->file_bytes), "a shift beyond the word");
  free(image);
}

static void attack_images(const struct world *world, uint64_t rounds, uint64_t *random) {
  const uint64_t bytes = world_plan(world)->file_bytes;
  const uint64_t records = sizeof(struct pe_segment_header) +
                           WORLD_FIELDS * sizeof(struct pe_field_record) +
                           sizeof(struct pe_run_record);
  uint64_t sound = 0, found = 0;
  for (uint64_t round = 0; round < rounds; round++) {
    const uint64_t length =
        world_below(random, 4) == 0 ? PE_PAGE_BYTES + world_below(random, bytes) : bytes;
    uint8_t *whole = malloc(bytes);
    uint8_t *image = calloc(1, length);
    world_make_image(world, whole, 0, 1);
    memcpy(image, whole, length < bytes ? length : bytes);
    free(whole);
    const bool in_rows = world_below(random, 3) == 0 && length == bytes;
    if (in_rows) {
      const uint64_t at = PE_PAGE_BYTES + world_below(random, world_plan(world)->block_table_offset - PE_PAGE_BYTES);
      image[at] ^= (uint8_t)(1u << world_below(random, 8));
      CHECK(pe_image_is_sound(image, length), "its header is whole");
      CHECK(pe_image_verify(image) >= 0, "byte %lu was changed unseen", (unsigned long)at);
      found++;
    } else {
      for (uint64_t i = world_below(random, 3) + 1; i-- > 0;) mutate(image, records, random);
      sound += read_image(image, length);
    }
    free(image);
  }
  printf("images: %lu rounds, %lu sound, %lu damaged rows found\n", (unsigned long)rounds,
         (unsigned long)sound, (unsigned long)found);
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
    sound += read_control(control, world->bytes, random);
    free(block);
  }
  printf("control blocks: %lu rounds, %lu sound\n", (unsigned long)rounds, (unsigned long)sound);
}

static void attack_gather(uint64_t rounds, uint64_t *random) {
  uint64_t outcomes[3] = {0, 0, 0};
  for (uint64_t round = 0; round < rounds; round++) {
    struct world world;
    world_open(&world, 1, 32, 4);
    const uint64_t bytes = world_plan(&world)->file_bytes;
    uint8_t *image = malloc(bytes);
    const uint64_t checksum = world_make_image(&world, image, 0, 1);
    for (uint64_t i = world_below(random, 3); i-- > 0;) mutate(image, bytes, random);
    const bool is_cut = world_below(random, 4) == 0;
    read_rows(&world, image, checksum, is_cut ? world_below(random, bytes) : bytes, outcomes);
    free(image);
    world_close(&world);
  }
  printf("gathers: %lu right, %lu damaged, %lu unreadable\n", (unsigned long)outcomes[0],
         (unsigned long)outcomes[1], (unsigned long)outcomes[2]);
  CHECK(outcomes[0] != 0 && outcomes[1] != 0 && outcomes[2] != 0,
        "one kind of outcome was never met");
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
