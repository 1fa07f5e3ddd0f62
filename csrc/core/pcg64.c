#include "pcg64.h"

__extension__ typedef unsigned __int128 wide;

#define MULTIPLIER (((wide)UINT64_C(2549297995355413924) << 64) | UINT64_C(4865540595714422341))

uint64_t pe_pcg64_next(struct pe_pcg64 *rng) {
  wide state = (wide)rng->state_high << 64 | rng->state_low;
  const wide inc = (wide)rng->inc_high << 64 | rng->inc_low;
  state = state * MULTIPLIER + inc;
  rng->state_high = (uint64_t)(state >> 64);
  rng->state_low = (uint64_t)state;
  const uint64_t folded = rng->state_high ^ rng->state_low;
  const unsigned rotation = (unsigned)(rng->state_high >> 58);
  return folded >> rotation | folded << (-rotation & 63);
}

uint64_t pe_pcg64_below(struct pe_pcg64 *rng, uint64_t bound) {
  wide product = (wide)pe_pcg64_next(rng) * bound;
  if ((uint64_t)product < bound) {
    const uint64_t threshold = -bound % bound;
    while ((uint64_t)product < threshold) product = (wide)pe_pcg64_next(rng) * bound;
  }
  return (uint64_t)(product >> 64);
}
