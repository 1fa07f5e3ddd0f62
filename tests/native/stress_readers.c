/* Beside the learner: gathers, updates of a mutable field, slots reserved ahead. */
#include "stress.h"

void *reader_thread(void *context) {
  struct stress *stress = context;
  struct pe_ring *ring = &stress->world.ring;
  int64_t refs[16];
  uint64_t ids[16], priorities[16];
  uint8_t bodies[16 * WORLD_BODY_BYTES], starts[16];
  uint8_t *outputs[] = {(uint8_t *)ids, bodies, starts};
  float weights[16];
  uint8_t *mutable_outputs[WORLD_MUTABLES] = {(uint8_t *)priorities, NULL};
  struct pe_fault fault;
  while (!atomic_load(&stress->stop)) {
    CHECK(pe_ring_lock_shared(ring) == PE_OK, "the lock");
    pthread_mutex_lock(&ring->draw);
    const bool by_priority = stress->gathered / 16 % 2 == 1;
    enum pe_status status = by_priority ? pe_priorities_draw(ring, 16, 0.4, refs, weights)
                                        : pe_ring_draw(ring, 16, refs);
    if (status == PE_OK) stress->gathered += 16;
    pthread_mutex_unlock(&ring->draw);
    if (status == PE_OK)
      status = pe_ring_gather(ring, refs, 16, outputs, mutable_outputs, &fault);
    pe_ring_unlock(ring);
    if (status == PE_EMPTY) continue;
    CHECK(status == PE_OK, "gather: status %d", (int)status);
    for (size_t i = 0; i < 16; i++) {
      const uint64_t ref = (uint64_t)refs[i];
      CHECK(ids[i] == ref && priorities[i] >> 16 == ref && starts[i] <= 1, "row %lu is torn",
            (unsigned long)ref);
      CHECK(!by_priority || (weights[i] > 0 && weights[i] <= 1), "weight %g", (double)weights[i]);
      world_check_body(bodies + i * WORLD_BODY_BYTES, ref, "gather");
    }
  }
  return NULL;
}

void *updater_thread(void *context) {
  struct stress *stress = context;
  struct pe_ring *ring = &stress->world.ring;
  int64_t refs[8];
  uint64_t values[8], lost;
  float errors[8];
  const struct pe_source sources[WORLD_MUTABLES] = {{(const uint8_t *)values, 8, 0},
                                                    {(const uint8_t *)errors, 4, 0}};
  struct pe_fault fault;
  for (uint64_t version = 1; !atomic_load(&stress->stop); version++) {
    CHECK(pe_ring_lock_shared(ring) == PE_OK, "the lock");
    pthread_mutex_lock(&ring->draw);
    enum pe_status status = pe_ring_draw(ring, 8, refs);
    pthread_mutex_unlock(&ring->draw);
    pe_ring_unlock(ring);
    if (status != PE_OK) continue;
    for (size_t i = 0; i < 8; i++) {
      values[i] = (uint64_t)refs[i] << 16 | (version & 0xffff);
      errors[i] = (float)(values[i] % 7 + 1);
    }
    CHECK(pe_ring_lock(ring) == PE_OK, "the lock");
    status = pe_ring_update(ring, refs, 8, sources, &lost, &fault);
    pe_ring_unlock(ring);
    CHECK(status == PE_OK, "update: status %d", (int)status);
    nap(100);
  }
  return NULL;
}

/* Let a segment that is PERSISTED, by chance any, live in its file. */
static void spill(struct stress *stress, uint64_t *random) {
  struct pe_ring *ring = &stress->world.ring;
  const uint64_t slot = world_below(random, SLOTS);
  CHECK(pe_ring_lock(ring) == PE_OK, "the lock");
  const uint64_t word =
      atomic_load_explicit(pe_control_word(ring->control, slot), memory_order_acquire);
  const uint64_t lane = pe_word_tag(word) % LANES, segment = pe_word_tag(word) / LANES;
  const bool is_window = (segment + 1) * WORLD_SEGMENT_ROWS > pe_lane_tail(ring, lane);
  if (pe_word_state(word) == PE_SLOT_PERSISTED) {
    const uint8_t *image = stress->images[slot]; /* stored before the word said PERSISTED */
    CHECK(pe_ring_spill_segment(ring, lane, segment, image) == is_window, "a spill");
    CHECK(!pe_ring_spill_segment(ring, lane, segment, image), "a second spill");
    stress->spilled += is_window;
  } else if (pe_word_state(word) == PE_SLOT_OPEN) {
    CHECK(!pe_ring_spill_segment(ring, lane, segment, ring->base), "a spill of an open segment");
  }
  pe_ring_unlock(ring);
}

void *reserver_thread(void *context) {
  struct stress *stress = context;
  struct pe_fault fault;
  uint64_t random = stress->seed * 5 + 1;
  while (!atomic_load(&stress->stop)) {
    spill(stress, &random);
    const enum pe_status status = pe_ring_reserve_ahead(&stress->world.ring, 3, &fault);
    CHECK(status == PE_OK || status == PE_NO_SLOT || status == PE_EMPTY, "reserve: status %d",
          (int)status);
    if (status != PE_OK) nap(500);
  }
  return NULL;
}
