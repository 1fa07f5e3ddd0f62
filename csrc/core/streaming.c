/* Which stores a large copy is made by: measured in bouts, over and over.
 *
 * A bout is so many bytes copied in one way. The first two try both; then come bouts of the quicker
 * way, and now and then one of the other, whose cost may have changed with what else runs here. A
 * single copy tells nothing: stores into a cache that is clean cost nothing until it is full. All is
 * process-wide, and a guess: threads that meet here lose a count at most.
 */
#include "streaming.h"

#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#include <stdatomic.h>
#include <x86intrin.h>

/* Below, a call of memcpy is faster than what streaming has to set up. */
#define STREAM_BYTES 4096
#define LINE_BYTES 64
#define AHEAD_BYTES 512

/* Twice what a core has of the last cache on most machines. */
#define BOUT_BYTES ((int64_t)64 << 20)
#define BOUTS_BETWEEN_LOOKS 16

/* A copy that took so many times what is known was held up by something else. */
#define HELD_UP 4

enum stores { CACHED, STREAMING };

static _Atomic uint32_t chosen = STREAMING;
static _Atomic int64_t bytes_left = BOUT_BYTES;
static _Atomic uint64_t bout_bytes, bout_ticks;
static _Atomic uint64_t ticks_per_mib[2]; /* 0: not tried yet */
static _Atomic uint32_t bouts_since_look;
static atomic_flag is_ending = ATOMIC_FLAG_INIT;

static void stream(uint8_t *target, const uint8_t *source, size_t bytes) {
  const size_t head = (LINE_BYTES - (uintptr_t)target % LINE_BYTES) % LINE_BYTES;
  memcpy(target, source, head);
  size_t at = head;
  for (; bytes - at >= LINE_BYTES; at += LINE_BYTES) {
    const __m128i *from = (const void *)(source + at);
    __m128i *to = (void *)(target + at);
    const __m128i a = _mm_loadu_si128(from);
    const __m128i b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2);
    const __m128i d = _mm_loadu_si128(from + 3);
    /* A hint, which may point beyond the range. */
    _mm_prefetch((const char *)((uintptr_t)from + AHEAD_BYTES), _MM_HINT_NTA);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
  memcpy(target + at, source + at, bytes - at);
}

/* The way of the next bout, after one made in the way `used`. Streaming spares what others have in
 * the caches: the other way has to be clearly quicker. */
static enum stores choose(enum stores used) {
  const uint64_t cached = atomic_load_explicit(&ticks_per_mib[CACHED], memory_order_relaxed);
  const uint64_t streaming = atomic_load_explicit(&ticks_per_mib[STREAMING], memory_order_relaxed);
  if (cached == 0) return CACHED;
  if (streaming == 0) return STREAMING;
  const enum stores best = 10 * cached < 9 * streaming ? CACHED : STREAMING;
  if (used != best) return best;
  if (atomic_fetch_add_explicit(&bouts_since_look, 1, memory_order_relaxed) + 1 < BOUTS_BETWEEN_LOOKS)
    return best;
  atomic_store_explicit(&bouts_since_look, 0, memory_order_relaxed);
  return best == CACHED ? STREAMING : CACHED;
}

static void end_bout(enum stores used) {
  if (atomic_flag_test_and_set_explicit(&is_ending, memory_order_acquire)) return;
  const uint64_t bytes = atomic_exchange_explicit(&bout_bytes, 0, memory_order_relaxed);
  const uint64_t ticks = atomic_exchange_explicit(&bout_ticks, 0, memory_order_relaxed);
  if (bytes >> 20 != 0)
    atomic_store_explicit(&ticks_per_mib[used], ticks / (bytes >> 20) + 1, memory_order_relaxed);
  atomic_store_explicit(&chosen, choose(used), memory_order_relaxed);
  atomic_store_explicit(&bytes_left, BOUT_BYTES, memory_order_relaxed);
  atomic_flag_clear_explicit(&is_ending, memory_order_release);
}

void pe_copy_large(uint8_t *target, const uint8_t *source, size_t bytes) {
  if (bytes < STREAM_BYTES) {
    memcpy(target, source, bytes);
    return;
  }
  const enum stores used = atomic_load_explicit(&chosen, memory_order_relaxed);
  const uint64_t known = atomic_load_explicit(&ticks_per_mib[used], memory_order_relaxed);
  const uint64_t begin = __rdtsc();
  if (used == STREAMING)
    stream(target, source, bytes);
  else
    memcpy(target, source, bytes);
  uint64_t ticks = __rdtsc() - begin;
  const uint64_t most = HELD_UP * known * ((bytes >> 10) + 1) >> 10;
  if (known != 0 && ticks > most) ticks = most;
  atomic_fetch_add_explicit(&bout_bytes, bytes, memory_order_relaxed);
  atomic_fetch_add_explicit(&bout_ticks, ticks, memory_order_relaxed);
  const int64_t copied = (int64_t)bytes;
  if (atomic_fetch_sub_explicit(&bytes_left, copied, memory_order_relaxed) <= copied) end_bout(used);
}

void pe_order_stores(void) { _mm_sfence(); }
#else
void pe_copy_large(uint8_t *target, const uint8_t *source, size_t bytes) {
  memcpy(target, source, bytes);
}

void pe_order_stores(void) {}
#endif
