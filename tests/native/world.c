#include "world.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "hash.h"

static uint64_t fnv(const void *data, size_t bytes) {
  const uint8_t *at = data;
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (size_t i = 0; i < bytes; i++) hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
  return hash;
}

uint64_t world_random(uint64_t *state) {
  *state ^= *state >> 12;
  *state ^= *state << 25;
  *state ^= *state >> 27;
  return *state * UINT64_C(0x2545f4914f6cdd1d) >> 16;
}

void world_plan_header(uint8_t *image) {
  static const struct {
    const char *name;
    uint32_t dtype;
    uint64_t row_bytes;
  } fields[WORLD_FIELDS] = {{"id", 8, 8}, {"body", 1, WORLD_BODY_BYTES}, {"@start", 0, 1}};
  struct pe_segment_header *header = (void *)image;
  struct pe_field_record *records = (void *)(header + 1);
  uint64_t offset = PE_PAGE_BYTES;
  uint64_t block = 0;
  memcpy(header->magic, PE_SEGMENT_MAGIC, 8);
  header->version = PE_SEGMENT_VERSION;
  header->header_bytes = PE_PAGE_BYTES;
  header->row_capacity = WORLD_SEGMENT_ROWS;
  header->kind = PE_KIND_SEGMENT;
  header->field_count = WORLD_FIELDS;
  header->run_count = header->run_capacity = 1;
  for (uint32_t f = 0; f < WORLD_FIELDS; f++) {
    strcpy(records[f].name, fields[f].name);
    records[f].dtype = fields[f].dtype;
    records[f].row_bytes = fields[f].row_bytes;
    records[f].offset = offset;
    records[f].region_bytes = PE_PAGE_BYTES;
    records[f].first_block = block;
    records[f].block_shift = 1;
    records[f].block_count = WORLD_SEGMENT_ROWS >> 1;
    block += records[f].block_count;
    offset += PE_PAGE_BYTES;
  }
  header->block_table_offset = offset;
  header->block_count = block;
  header->file_bytes = offset + PE_PAGE_BYTES;
}

static uint8_t *map(int fd, uint64_t bytes) {
  uint8_t *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(at != MAP_FAILED, "mmap");
  return at;
}

void world_open(struct world *world, uint32_t lanes, uint64_t rows_per_lane, uint64_t slots) {
  struct pe_ring_control plan;
  memset(world, 0, sizeof *world);
  pe_hash_bind(fnv, true);
  world->header_image = calloc(1, PE_PAGE_BYTES);
  world_plan_header(world->header_image);
  const struct pe_segment_header *header = (const void *)world->header_image;
  memset(&plan, 0, sizeof plan);
  memcpy(plan.magic, PE_RING_MAGIC, 8);
  plan.version = PE_RING_VERSION;
  plan.lanes = lanes;
  plan.rows_per_lane = rows_per_lane;
  plan.segment_rows = WORLD_SEGMENT_ROWS;
  plan.slot_count = slots;
  plan.slot_bytes = header->file_bytes;
  plan.blocks_per_segment = header->block_count;
  plan.mutable_bytes = lanes * rows_per_lane * (8 + 4);
  CHECK(pe_control_plan(&plan), "a plan of a small ring");
  world->bytes = plan.arena_bytes;
  world->fd = memfd_create("pe-test", MFD_CLOEXEC);
  CHECK(world->fd >= 0 && ftruncate(world->fd, (off_t)world->bytes) == 0, "memfd");
  world->base = map(world->fd, world->bytes);
  world->spec = map(world->fd, world->bytes);
  memcpy(world->base, &plan, sizeof plan);

  world->mutable_fields[0] = (struct pe_mutable_field){8, plan.mutable_offset};
  world->mutable_fields[1] =
      (struct pe_mutable_field){4, plan.mutable_offset + lanes * rows_per_lane * 8};
  struct pe_ring *ring = &world->ring;
  ring->control = (void *)world->base;
  ring->base = world->base;
  ring->arena_fd = world->fd;
  ring->seal_event = -1;
  ring->field_count = WORLD_FIELDS;
  ring->mutable_count = WORLD_MUTABLES;
  ring->header_image = world->header_image;
  ring->header_bytes = PE_PAGE_BYTES;
  ring->fields = pe_segment_fields((const void *)world->header_image);
  ring->mutables = world->mutable_fields;
  ring->rng = (struct pe_pcg64){1, 2, 3, 5};
  CHECK(pe_ring_open(ring) == PE_OK, "memory for the tables");
  world->priorities.rule = (struct pe_priority_rule){1, 0.6, 1e-6, true, false};
  CHECK(pe_priorities_open(ring, &world->priorities) == PE_OK, "memory for the tree");
}

void world_close(struct world *world) {
  CHECK(pe_ring_close(&world->ring) == PE_OK, "nobody is inside");
  pe_ring_free(&world->ring);
  munmap(world->base, world->bytes);
  munmap(world->spec, world->bytes);
  close(world->fd);
  free(world->header_image);
}

void world_fill_row(struct row *row, uint64_t ref) {
  uint64_t state = ref * 2 + 1;
  row->ref = ref;
  for (size_t i = 0; i < WORLD_BODY_BYTES; i++) row->body[i] = (uint8_t)world_random(&state);
}

void world_check_body(const uint8_t *body, uint64_t ref, const char *where) {
  struct row whole;
  world_fill_row(&whole, ref);
  CHECK(memcmp(whole.body, body, WORLD_BODY_BYTES) == 0, "%s: row %lu is torn", where,
        (unsigned long)ref);
}

void world_check_image(const struct world *world, const uint8_t *image, uint64_t lane,
                       uint64_t first, uint64_t end, const char *where) {
  const struct pe_ring *ring = &world->ring;
  for (uint64_t row = first; row < end; row++) {
    const uint64_t at = row & (WORLD_SEGMENT_ROWS - 1);
    const uint64_t ref = row * ring->control->lanes + lane;
    uint64_t found;
    memcpy(&found, image + ring->fields[0].offset + at * 8, 8);
    CHECK(found == ref, "%s: row %lu of lane %lu holds ref %lu", where, (unsigned long)row,
          (unsigned long)lane, (unsigned long)found);
    world_check_body(image + ring->fields[1].offset + at * WORLD_BODY_BYTES, ref, where);
  }
}

uint64_t world_make_image(const struct world *world, uint8_t *image, uint64_t lane,
                          uint64_t segment) {
  uint8_t scratch[4 * PE_PAGE_BYTES];
  const struct pe_ring *ring = &world->ring;
  memset(image, 0, world_plan(world)->file_bytes);
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
