/*
 * The shared-memory protocol under threads: a learner that appends, cuts and cancels, readers,
 * an updater, one that reserves slots, and a writer that is slow, fails, dies between any two steps
 * and is started again. Built with ThreadSanitizer, and with AddressSanitizer and UBSan.
 *
 *     stress SECONDS SEED
 *
 * Checked: a gathered row is whole and in its window; a PERSISTED segment's file has exactly what
 * was appended; a committed snapshot has every row that it cut; a held segment is never reused; a
 * staging slot does not change while it is WRITING; at the end no published row is missing.
 */
#include <math.h>

#include "stress.h"

/* The trainer is gone and the writer has drained: every published row is in a file, or in a segment
 * that is still open, which the drain would copy. */
static void check_nothing_is_lost(struct stress *stress) {
  struct pe_ring *ring = &stress->world.ring;
  struct pe_file record;
  for (uint64_t lane = 0; lane < LANES; lane++)
    for (uint64_t row = pe_lane_tail(ring, lane); row < pe_lane_total(ring, lane); row++) {
      const uint64_t segment = row / WORLD_SEGMENT_ROWS;
      const uint64_t place = pe_control_find(ring->control, lane, segment, &record);
      CHECK(place != PE_PLACE_NONE, "row %lu is nowhere", (unsigned long)row);
      bool is_file = place == PE_PLACE_FILE;
      const uint8_t *image = NULL;
      if (!is_file) {
        const uint64_t state = state_of(pe_control_word(ring->control, place - 1));
        CHECK(state == PE_SLOT_OPEN || state == PE_SLOT_PERSISTED, "row %lu was not written",
              (unsigned long)row);
        image = ring->base + pe_control_slot_offset(ring->control, place - 1);
        is_file = state == PE_SLOT_PERSISTED;
        record = *pe_control_slot_file(ring->control, place - 1);
      }
      if (is_file) {
        const struct file *file = find_file(stress, record.sequence);
        CHECK(file != NULL, "the file of row %lu is gone", (unsigned long)row);
        image = file->image;
      }
      world_check_image(&stress->world, image, lane, row, row + 1, "at the end");
    }
  for (size_t i = 0; i < ENTRIES; i++)
    CHECK(state_of(&stress->entries[i].staging) == FREE, "a staging slot is never freed");
}

/* The tree has a leaf for each row of the window, and no other. */
static void check_tree(struct stress *stress) {
  struct pe_ring *ring = &stress->world.ring;
  const double *leaves = stress->world.priorities.tree.sums[0];
  const float *stored = (const void *)(ring->base + stress->world.mutable_fields[1].offset);
  pe_priorities_settle(ring);
  for (uint64_t lane = 0; lane < LANES; lane++) {
    const uint64_t rows = pe_lane_total(ring, lane) - pe_lane_tail(ring, lane);
    for (uint64_t slot = 0; slot < ROWS; slot++) {
      const bool is_there = rows == ROWS || slot < rows; /* nothing aged out but by a new row */
      const uint64_t place = lane * ROWS + slot;
      CHECK(leaves[place] == (is_there ? pow((double)stored[place], 0.6) : 0), "leaf %lu",
            (unsigned long)place);
    }
  }
  const double total = pe_sum_tree_total(&stress->world.priorities.tree);
  pe_sum_tree_refresh(&stress->world.priorities.tree, 0, LANES * ROWS);
  CHECK(total == pe_sum_tree_total(&stress->world.priorities.tree), "the total");
}

static void run_round(uint64_t seed, unsigned milliseconds) {
  struct stress *stress = calloc(1, sizeof *stress);
  void *(*const bodies[])(void *) = {learner_thread, reader_thread, reader_thread, updater_thread,
                                     reserver_thread};
  pthread_t threads[sizeof bodies / sizeof bodies[0]], supervisor;
  stress->seed = seed;
  world_open(&stress->world, LANES, ROWS, SLOTS);
  CHECK(pthread_create(&supervisor, NULL, supervisor_thread, stress) == 0, "a thread");
  for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++)
    CHECK(pthread_create(&threads[i], NULL, bodies[i], stress) == 0, "a thread");
  for (unsigned waited = 0; waited < milliseconds; waited += 20) nap(20000);
  atomic_store(&stress->stop, true);
  for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) pthread_join(threads[i], NULL);
  atomic_store(&stress->drain, true);
  pthread_join(supervisor, NULL);
  check_nothing_is_lost(stress);
  check_tree(stress);
  uint64_t rows = 0;
  for (uint64_t lane = 0; lane < LANES; lane++) rows += pe_lane_total(&stress->world.ring, lane);
  printf("seed %lu: rows %lu gathered %lu persisted %lu spilled %lu lost %lu committed %lu cancelled %lu "
         "failed %lu deaths %lu waits %lu\n",
         (unsigned long)seed, (unsigned long)rows, (unsigned long)stress->gathered,
         (unsigned long)stress->persisted, (unsigned long)stress->spilled,
         (unsigned long)stress->lost,
         (unsigned long)stress->committed, (unsigned long)stress->cancelled,
         (unsigned long)stress->failed, (unsigned long)stress->deaths,
         (unsigned long)stress->waits);
  for (size_t i = 0; i < POOL; i++) free(stress->pool[i].image);
  world_close(&stress->world);
  free(stress);
}

int main(int argc, char **argv) {
  const double seconds = argc > 1 ? atof(argv[1]) : 2;
  const uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
  const unsigned milliseconds = seconds < 1 ? (unsigned)(seconds * 1000) : 1000;
  for (uint64_t round = 0; (double)round * milliseconds < seconds * 1000; round++) {
    run_publication();
    run_round(seed + round, milliseconds);
  }
  printf("ok\n");
  return 0;
}
