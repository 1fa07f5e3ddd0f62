/*
 * The sum tree against a plain binary one: every node, and every leaf that is found, whatever is
 * changed in which order, with targets at and beyond every edge.
 *
 *     sum_tree ROUNDS SEED
 */
#include "sum_tree.h"

#include <math.h>
#include <string.h>

#include "world.h"

#define LEAVES_MAX 600u
#define ROOM 4096u /* the power of eight above */

struct plain {
  uint64_t size;
  double nodes[2 * ROOM]; /* node i has children 2i and 2i + 1; leaves from `size` on */
};

static void build(struct plain *plain, const double *leaves, uint64_t count) {
  plain->size = 8;
  while (plain->size < count) plain->size *= 8;
  memset(plain->nodes, 0, sizeof plain->nodes);
  memcpy(plain->nodes + plain->size, leaves, count * sizeof *leaves);
  for (uint64_t i = plain->size - 1; i > 0; i--)
    plain->nodes[i] = plain->nodes[2 * i] + plain->nodes[2 * i + 1];
}

static uint64_t find(const struct plain *plain, double target) {
  uint64_t node = 1;
  while (node < plain->size) {
    const double left = plain->nodes[2 * node];
    const bool is_right = target >= left && plain->nodes[2 * node + 1] > 0;
    if (is_right) target -= left;
    node = 2 * node + is_right;
  }
  return node - plain->size;
}

static void check_nodes(const struct pe_sum_tree *tree, const struct plain *plain) {
  uint64_t first = plain->size;
  for (uint32_t level = 0; level <= tree->height; level++, first /= 8)
    for (uint64_t i = 0; i < tree->widths[level]; i++)
      CHECK(memcmp(&tree->sums[level][i], &plain->nodes[first + i], sizeof(double)) == 0,
            "node %lu of level %u", (unsigned long)i, level);
  double low = HUGE_VAL;
  for (uint64_t i = 0; i < tree->capacity; i++)
    if (tree->sums[0][i] > 0 && tree->sums[0][i] < low) low = tree->sums[0][i];
  CHECK(pe_sum_tree_lowest(tree) == (low < HUGE_VAL ? low : 0), "the least leaf");
}

static void check_finds(const struct pe_sum_tree *tree, const struct plain *plain,
                        uint64_t *random) {
  double targets[PE_TREE_BATCH], given[PE_TREE_BATCH];
  uint64_t leaves[PE_TREE_BATCH];
  const double total = pe_sum_tree_total(tree);
  const uint32_t count = (uint32_t)world_below(random, PE_TREE_BATCH) + 1;
  double sum = 0;
  for (uint32_t i = 0; i < count; i++) {
    sum += tree->sums[0][i % tree->capacity];
    const double edges[] = {0, total, total * 2, nextafter(total, 0), sum, nextafter(sum, 0),
                            total * (double)world_below(random, 1u << 20) / (1u << 20)};
    targets[i] = given[i] = edges[world_below(random, 7)];
  }
  pe_sum_tree_find(tree, targets, count, leaves);
  for (uint32_t i = 0; i < count; i++) {
    CHECK(leaves[i] == find(plain, given[i]), "target %a", given[i]);
    CHECK(tree->sums[0][leaves[i]] > 0, "a leaf of 0 was found");
  }
}

static double some_leaf(uint64_t *random) {
  switch (world_below(random, 4)) {
    case 0: return 0;
    case 1: return (double)world_below(random, 3);
    case 2: return ldexp((double)world_below(random, 1u << 20), -20);
    default: return ldexp(1.0 / 3, (int)world_below(random, 160) - 80);
  }
}

static void run_round(uint64_t *random) {
  static struct plain plain;
  struct pe_sum_tree tree;
  const uint64_t capacity = world_below(random, LEAVES_MAX) + 1;
  CHECK(pe_sum_tree_open(&tree, capacity), "memory");
  for (int turn = 0; turn < 8; turn++) {
    uint64_t places[PE_TREE_BATCH];
    const uint32_t count = (uint32_t)world_below(random, PE_TREE_BATCH + 1);
    const uint64_t first = world_below(random, capacity);
    const uint64_t end = first + world_below(random, capacity - first + 1);
    for (uint32_t i = 0; i < count; i++) {
      places[i] = world_below(random, capacity);
      tree.sums[0][places[i]] = some_leaf(random);
    }
    pe_sum_tree_refresh_batch(&tree, places, count);
    for (uint64_t i = first; i < end; i++) tree.sums[0][i] = some_leaf(random);
    pe_sum_tree_refresh(&tree, first, end);
    build(&plain, tree.sums[0], capacity);
    check_nodes(&tree, &plain);
    if (pe_sum_tree_total(&tree) > 0) check_finds(&tree, &plain, random);
  }
  pe_sum_tree_free(&tree);
}

int main(int argc, char **argv) {
  CHECK(argc == 3, "sum_tree ROUNDS SEED");
  uint64_t random = strtoull(argv[2], NULL, 10) * 2 + 1;
  for (uint64_t round = strtoull(argv[1], NULL, 10); round > 0; round--) run_round(&random);
  return 0;
}
