/* The trainer: appends rows, cuts snapshots, gives them up where it would wait too long. */
#include "stress.h"

static bool cancel(struct stress *stress, struct entry *entry) {
  const uint64_t seen = atomic_load_explicit(&entry->snapshot, memory_order_acquire);
  if (pe_word_state(seen) != PE_SNAPSHOT_PENDING ||
      !pe_word_move(&entry->snapshot, seen, pe_word(pe_word_tag(seen), PE_SNAPSHOT_CANCELLED)))
    return false;
  stress->cancelled++;
  return true;
}

static void cut(struct stress *stress, uint64_t sequence, uint64_t *random) {
  struct pe_ring *ring = &stress->world.ring;
  for (size_t i = 0; i < ENTRIES; i++) {
    struct entry *entry = &stress->entries[i];
    const uint64_t seen = atomic_load_explicit(&entry->staging, memory_order_acquire);
    if (pe_word_state(seen) != FREE ||
        !pe_word_move(&entry->staging, seen, pe_word(sequence, STAGING)))
      continue;
    for (size_t j = 0; j < STAGING_BYTES / 8; j++) entry->bytes[j] = sequence * 1000 + j;
    CHECK(pe_ring_lock(ring) == PE_OK, "the lock");
    atomic_store_explicit(&entry->snapshot, pe_word(sequence, PE_SNAPSHOT_PENDING),
                          memory_order_release);
    memcpy(entry->mutables, ring->base + stress->world.mutable_fields[0].offset,
           sizeof entry->mutables);
    for (uint64_t lane = 0; lane < LANES; lane++) {
      entry->tails[lane] = pe_lane_tail(ring, lane);
      entry->totals[lane] = pe_lane_total(ring, lane);
    }
    CHECK(pe_ring_hold(ring, &entry->snapshot, sequence), "a place for a hold");
    const bool is_given_up = world_below(random, 8) == 0; /* something raised in the cut */
    if (is_given_up) cancel(stress, entry);
    CHECK(pe_word_move(&entry->staging, pe_word(sequence, STAGING),
                       pe_word(sequence, is_given_up ? FREE : STAGED)),
          "a slot that is STAGING is the trainer's");
    pe_ring_unlock(ring);
    return;
  }
}

/* Append rows, as the lock is held: one step with a mask, or several of one lane or of all. */
static enum pe_status append(struct stress *stress, uint64_t *random) {
  struct pe_ring *ring = &stress->world.ring;
  struct row rows[3 * LANES];
  uint64_t priorities[3 * LANES];
  uint8_t mask[LANES];
  const bool masked = world_below(random, 3) == 0;
  const uint64_t begin = masked ? 0 : world_below(random, LANES);
  const uint64_t lanes = masked ? LANES : LANES - begin;
  const uint64_t steps = masked ? 1 : 1 + world_below(random, 3);
  for (uint64_t lane = 0; lane < lanes; lane++) {
    mask[lane] = world_below(random, 2) != 0;
    for (uint64_t step = 0; step < steps; step++) {
      const uint64_t ref = (pe_lane_total(ring, begin + lane) + step) * LANES + begin + lane;
      world_fill_row(&rows[step * lanes + lane], ref);
      priorities[step * lanes + lane] = ref << 16;
    }
  }
  const uint64_t step_bytes = lanes * sizeof(struct row);
  const struct pe_source sources[] = {
      {(const uint8_t *)&rows[0].ref, step_bytes, sizeof(struct row)},
      {rows[0].body, step_bytes, sizeof(struct row)},
  };
  const struct pe_source mutables[WORLD_MUTABLES] = {
      {(const uint8_t *)priorities, lanes * 8, 8},
      {(const uint8_t *)&stress->world.priorities.highest, 0, 0},
  };
  uint64_t done = 0;
  struct pe_fault fault;
  return pe_ring_append(ring, begin, lanes, steps, sources, mutables, masked ? mask : NULL, &done,
                        &fault);
}

void *learner_thread(void *context) {
  struct stress *stress = context;
  struct pe_ring *ring = &stress->world.ring;
  uint64_t random = stress->seed * 7 + 3;
  uint64_t sequence = 1;
  unsigned waits = 0;
  while (!atomic_load(&stress->stop)) {
    CHECK(pe_ring_lock(ring) == PE_OK, "the lock");
    const enum pe_status status = append(stress, &random);
    if (world_below(&random, 32) == 0) pe_ring_break(ring, 0, LANES);
    pe_ring_unlock(ring);
    CHECK(status == PE_OK || status == PE_NO_SLOT, "append: status %d", (int)status);
    if (status == PE_NO_SLOT) {
      stress->waits++;
      nap(100);
      if (++waits > 40) /* the bound: give up what holds the slots */
        for (size_t i = 0; i < ENTRIES; i++) cancel(stress, &stress->entries[i]);
      CHECK(waits < 200000, "the trainer waits for ever");
      continue;
    }
    waits = 0;
    if (world_below(&random, 24) == 0) cut(stress, sequence++, &random);
    if (world_below(&random, 512) == 0) cancel(stress, &stress->entries[sequence % ENTRIES]);
    if (world_below(&random, 8) == 0) nap(60);
  }
  return NULL;
}
