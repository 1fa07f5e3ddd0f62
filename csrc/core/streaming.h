/* Copies past the caches: a streaming store does not read the line that it writes, and leaves in the
 * caches what is used there. For what nobody looks at soon. */
#ifndef PYENGINE_STREAMING_H
#define PYENGINE_STREAMING_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>

/* Below, a call of memcpy is faster than what streaming has to set up. */
#define PE_STREAM_BYTES 4096
#define PE_STREAM_LINE_BYTES 64
#define PE_STREAM_AHEAD_BYTES 512

/* Copy; other threads may not see it before pe_order_stores. */
static inline void pe_copy_past_caches(uint8_t *target, const uint8_t *source, size_t bytes) {
  if (bytes < PE_STREAM_BYTES) {
    memcpy(target, source, bytes);
    return;
  }
  const size_t head = (PE_STREAM_LINE_BYTES - (uintptr_t)target % PE_STREAM_LINE_BYTES) %
                      PE_STREAM_LINE_BYTES;
  memcpy(target, source, head);
  size_t at = head;
  for (; bytes - at >= PE_STREAM_LINE_BYTES; at += PE_STREAM_LINE_BYTES) {
    const __m128i *from = (const void *)(source + at);
    __m128i *to = (void *)(target + at);
    const __m128i a = _mm_loadu_si128(from);
    const __m128i b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2);
    const __m128i d = _mm_loadu_si128(from + 3);
    /* A hint, which may point beyond the range. */
    _mm_prefetch((const char *)((uintptr_t)from + PE_STREAM_AHEAD_BYTES), _MM_HINT_NTA);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
  memcpy(target + at, source + at, bytes - at);
}

/* Streaming stores are ordered by nothing else, not even by a release. */
static inline void pe_order_stores(void) { _mm_sfence(); }
#else
static inline void pe_copy_past_caches(uint8_t *target, const uint8_t *source, size_t bytes) {
  memcpy(target, source, bytes);
}

static inline void pe_order_stores(void) {}
#endif

#endif
