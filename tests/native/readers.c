#include "readers.h"

#include <sys/mman.h>
#include <unistd.h>

#include "hash.h"

bool read_image(uint8_t *image, uint64_t bytes) {
  if (!pe_image_is_sound(image, bytes)) return false;
  const struct pe_segment_header *header = (const void *)image;
  uint8_t *scratch =
      malloc(header->header_bytes + (header->file_bytes - header->block_table_offset));
  CHECK(scratch != NULL, "memory");
  pe_image_verify(image);
  pe_image_seal(image, scratch);
  free(scratch);
  return true;
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

bool read_control(struct pe_ring_control *control, uint64_t bytes, uint64_t *random) {
  if (!pe_control_is_sound(control, bytes)) return false;
  look_around(control, random);
  return true;
}

static int make_file(const uint8_t *image, uint64_t bytes) {
  const int fd = memfd_create("pe-image", MFD_CLOEXEC);
  CHECK(fd >= 0 && pwrite(fd, image, bytes, 0) == (ssize_t)bytes, "a file");
  return fd;
}

void read_rows(struct world *world, const uint8_t *image, uint64_t checksum, uint64_t length,
               uint64_t outcomes[3]) {
  struct pe_ring *ring = &world->ring;
  const uint64_t bytes = world_plan(world)->file_bytes;
  const struct pe_file file = {1, 0, 4, 4, 1, checksum, bytes};
  const int fd = make_file(image, bytes);
  uint8_t *mapped = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
  CHECK(mapped != MAP_FAILED, "mmap");
  pe_ring_set_lane(ring, 0, 4, 8, false);
  pe_ring_map_segment(ring, 0, 1, mapped, &file);
  CHECK(length == bytes || ftruncate(fd, (off_t)length) == 0, "ftruncate");

  const int64_t refs[] = {4, 5, 6, 7};
  uint64_t ids[4], priorities[4];
  uint8_t bodies[4 * WORLD_BODY_BYTES], starts[4];
  uint8_t *outputs[] = {(uint8_t *)ids, bodies, starts};
  uint8_t *mutable_outputs[WORLD_MUTABLES] = {(uint8_t *)priorities, NULL};
  struct pe_fault fault;
  for (int again = 0; again < 2; again++) {
    const enum pe_status status = pe_ring_gather(ring, refs, 4, outputs, mutable_outputs, &fault);
    if (status == PE_OK) {
      outcomes[0]++;
      for (uint64_t i = 0; i < 4; i++) {
        CHECK(ids[i] == 4 + i && starts[i] == 0, "row %lu is not what was written",
              (unsigned long)(4 + i));
        world_check_body(bodies + i * WORLD_BODY_BYTES, 4 + i, "mapped file");
      }
      continue;
    }
    CHECK(status == PE_DAMAGED || status == PE_UNREADABLE, "status %d", (int)status);
    CHECK(fault.segment == 1 && fault.lane == 0 && fault.block < world_plan(world)->block_count,
          "the fault names segment %lu", (unsigned long)fault.segment);
    outcomes[status == PE_DAMAGED ? 1 : 2]++;
  }
  munmap(mapped, bytes);
  close(fd);
}
