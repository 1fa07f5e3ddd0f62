/* Rows are whole once they are published, for readers that take no lock. */
#include "stress.h"

#define LONG_ROWS 512u

struct publication {
  struct world world;
  atomic_bool stop;
};

/* No lock: what a writer does that drains a trainer which may have died in the middle of an append.
 * Nothing ages out here, so every published row may be read. */
static void *drain_thread(void *context) {
  struct publication *shared = context;
  struct pe_ring_control *control = shared->world.ring.control;
  uint64_t seen = 0;
  struct pe_file file;
  while (seen < LONG_ROWS && !atomic_load(&shared->stop)) {
    const uint64_t total = atomic_load_explicit(&pe_control_lane(control, 0)->total_count,
                                                memory_order_acquire);
    for (; seen < total; seen++) {
      const uint64_t place = pe_control_find(control, 0, seen / WORLD_SEGMENT_ROWS, &file);
      CHECK(place != PE_PLACE_NONE && place != PE_PLACE_FILE, "a published row is nowhere");
      world_check_image(&shared->world,
                        shared->world.base + pe_control_slot_offset(control, place - 1), 0, seen,
                        seen + 1, "published");
    }
  }
  return NULL;
}

void run_publication(void) {
  struct publication *shared = calloc(1, sizeof *shared);
  pthread_t threads[2];
  world_open(&shared->world, 1, LONG_ROWS, LONG_ROWS / WORLD_SEGMENT_ROWS + 1);
  for (size_t i = 0; i < 2; i++)
    CHECK(pthread_create(&threads[i], NULL, drain_thread, shared) == 0, "a thread");
  for (uint64_t ref = 0; ref < LONG_ROWS; ref++) {
    struct row row;
    world_fill_row(&row, ref);
    const uint64_t priority = ref << 16;
    const struct pe_source sources[] = {{(const uint8_t *)&row.ref, 0, 0}, {row.body, 0, 0}};
    const struct pe_source mutables[WORLD_MUTABLES] = {
        {(const uint8_t *)&priority, 0, 0},
        {(const uint8_t *)&shared->world.priorities.highest, 0, 0},
    };
    uint64_t done = 0;
    struct pe_fault fault;
    CHECK(pe_ring_lock(&shared->world.ring) == PE_OK, "the lock");
    CHECK(pe_ring_append(&shared->world.ring, 0, 1, 1, sources, mutables, NULL, &done, &fault) ==
              PE_OK,
          "a slot for each segment");
    pe_ring_unlock(&shared->world.ring);
    if (ref % 16 == 0) sched_yield();
  }
  for (size_t i = 0; i < 2; i++) pthread_join(threads[i], NULL);
  atomic_store(&shared->stop, true);
  world_close(&shared->world);
  free(shared);
}
