/*
 * The native readers under libFuzzer, which looks for bytes that take new ways through them; built by
 * tools/fuzz.py. The first byte of an input says which reader gets the others, which are what is
 * changed (by exclusive or) in bytes that are whole: no seeds are needed.
 */
#include <string.h>

#include "readers.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void change(uint8_t *bytes, uint64_t count, const uint8_t *data, size_t size) {
  for (size_t i = 0; i < size && i < count; i++) bytes[i] ^= data[i];
}

/* An image that is cut and changed; what is left of it in memory of its exact size. */
static void image(const uint8_t *data, size_t size) {
  struct world world;
  world_open(&world, 1, 32, 4);
  const uint64_t whole_bytes = world_plan(&world)->file_bytes;
  uint8_t *whole = malloc(whole_bytes);
  world_make_image(&world, whole, 0, 1);
  const uint64_t cut = size < 2 ? 0 : (data[0] | (uint64_t)data[1] << 8) % whole_bytes;
  const uint64_t bytes = whole_bytes - cut;
  uint8_t *left = malloc(bytes);
  memcpy(left, whole, bytes);
  if (size > 2) change(left, bytes, data + 2, size - 2);
  read_image(left, bytes);
  free(left);
  free(whole);
  world_close(&world);
}

static void control(const uint8_t *data, size_t size) {
  struct world world;
  uint64_t random = 1;
  world_open(&world, 2, 16, 3);
  uint8_t *block = aligned_alloc(64, world.bytes);
  memcpy(block, world.base, world.bytes);
  change(block, world.bytes, data, size);
  read_control((void *)block, world.bytes, &random);
  free(block);
  world_close(&world);
}

static void rows(const uint8_t *data, size_t size) {
  struct world world;
  uint64_t outcomes[3] = {0, 0, 0};
  world_open(&world, 1, 32, 4);
  const uint64_t bytes = world_plan(&world)->file_bytes;
  uint8_t *whole = malloc(bytes);
  const uint64_t checksum = world_make_image(&world, whole, 0, 1);
  change(whole, bytes, data, size);
  read_rows(&world, whole, checksum, bytes, outcomes);
  free(whole);
  world_close(&world);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static void (*const readers[])(const uint8_t *, size_t) = {image, control, rows};
  if (size > 0) readers[data[0] % 3](data + 1, size - 1);
  return 0;
}
