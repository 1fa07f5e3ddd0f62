/* Copies of large values that nobody looks at soon.
 *
 * A streaming store does not read the line that it writes, and leaves in the caches what is used
 * there: on many machines twice as quick as a store into them. Where a cache holds most of what is
 * copied, it is the other way round. So both are measured, by the copies that are made anyway, and
 * the quicker one is used (streaming.c). Any thread.
 */
#ifndef PYENGINE_STREAMING_H
#define PYENGINE_STREAMING_H

#include <stddef.h>
#include <stdint.h>

/* Copy; other threads may not see it before pe_order_stores. */
void pe_copy_large(uint8_t *target, const uint8_t *source, size_t bytes);

/* Streaming stores are ordered by nothing else, not even by a release. */
void pe_order_stores(void);

#endif
