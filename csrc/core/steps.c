/* Returns over n steps. */
#include <stdlib.h>
#include <string.h>

#include "spans.h"

void pe_steps_find(const struct pe_ring *ring, const int64_t *refs, uint64_t count, uint64_t most,
                   int64_t *lasts, int64_t *steps) {
  const uint64_t lanes = ring->control->lanes;
  for (uint64_t i = 0; i < count; i++) {
    uint64_t found = 1;
    const uint64_t lane = (uint64_t)refs[i] % lanes;
    const uint64_t row = (uint64_t)refs[i] / lanes;
    /* A ref of no row is found out by the gather. */
    if (refs[i] >= 0 && row >= pe_lane_tail(ring, lane)) {
      const uint64_t total = pe_lane_total(ring, lane);
      while (found < most && row + found < total && pe_row_continues(ring, lane, row + found))
        found++;
    }
    steps[i] = (int64_t)found;
    lasts[i] = refs[i] + (int64_t)((found - 1) * lanes);
  }
}

struct summing {
  const struct pe_steps *sum;
  const struct pe_place *places; /* steps[0] of the first row, then those of the next ... */
  uint64_t offset;
  uint64_t row_bytes;
  uint8_t *returns;
  float *discounts;
};

static double load(const uint8_t *at, bool is_double) {
  double wide;
  float narrow;
  if (is_double) {
    memcpy(&wide, at, sizeof wide);
    return wide;
  }
  memcpy(&narrow, at, sizeof narrow);
  return (double)narrow;
}

static void store(uint8_t *at, double value, bool is_double) {
  const float narrow = (float)value;
  if (is_double)
    memcpy(at, &value, sizeof value);
  else
    memcpy(at, &narrow, sizeof narrow);
}

/* Under the guard of mapped files: arithmetic alone. */
static void sum_rows(void *context) {
  const struct summing *summing = context;
  const struct pe_steps *sum = summing->sum;
  const uint64_t item = sum->is_double ? sizeof(double) : sizeof(float);
  const struct pe_place *places = summing->places;
  uint8_t *to = summing->returns;
  for (uint64_t i = 0; i < sum->count; i++) {
    const uint64_t steps = (uint64_t)sum->steps[i];
    double factor = sum->gamma;
    for (uint64_t k = 1; k < steps; k++) factor *= sum->gamma;
    if (summing->discounts != NULL) summing->discounts[i] = (float)factor;
    for (uint64_t at = 0; to != NULL && at < summing->row_bytes; at += item, to += item) {
      double total = 0;
      factor = 1;
      for (uint64_t k = 0; k < steps; k++) {
        const uint8_t *row =
            places[k].image + summing->offset + places[k].row * summing->row_bytes;
        const double value = load(row + at, sum->is_double);
        const double part = factor * value;
        total = k == 0 ? value : total + part;
        factor *= sum->gamma;
      }
      store(to, total, sum->is_double);
    }
    places += steps;
  }
}

enum pe_status pe_steps_sum(struct pe_ring *ring, const struct pe_steps *sum, uint8_t *returns,
                            float *discounts, struct pe_fault *fault) {
  const uint64_t lanes = ring->control->lanes;
  const struct pe_field_record *field = &ring->fields[sum->field];
  enum pe_status status = PE_OUT_OF_MEMORY;
  uint64_t rows = 0;
  for (uint64_t i = 0; i < sum->count; i++) rows += (uint64_t)sum->steps[i];
  struct pe_place *places = malloc((size_t)(rows + 1) * sizeof *places);
  uint8_t **wanted = calloc(ring->field_count, sizeof *wanted);
  if (places == NULL || wanted == NULL) goto done;
  rows = 0;
  for (uint64_t i = 0; i < sum->count; i++)
    for (uint64_t k = 0; k < (uint64_t)sum->steps[i]; k++)
      places[rows++] = pe_place_of(ring, (uint64_t)sum->refs[i] % lanes,
                                   (uint64_t)sum->refs[i] / lanes + k);
  struct summing summing = {sum, places, field->offset, field->row_bytes, returns, discounts};
  wanted[sum->field] = returns; /* nothing is written by the verifying */
  status = pe_mapped_verify_rows(ring, places, rows, wanted, fault);
  if (status == PE_OK) status = pe_mapped_read(ring, sum_rows, &summing, fault);
done:
  free(places);
  free(wanted);
  return status;
}
