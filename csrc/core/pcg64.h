/* PCG64 (XSL-RR 128/64, O'Neill 2014), the same stream as numpy.random.PCG64. */
#ifndef PE_PCG64_H
#define PE_PCG64_H

#include <stdint.h>

struct pe_pcg64 {
  uint64_t state_high, state_low;
  uint64_t inc_high, inc_low;
};

uint64_t pe_pcg64_next(struct pe_pcg64 *rng);

/* Uniform in [0, bound), without bias (Lemire 2019, "Fast random integer generation in an
 * interval"); bound is at least 1. */
uint64_t pe_pcg64_below(struct pe_pcg64 *rng, uint64_t bound);

#endif
